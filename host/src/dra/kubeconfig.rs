//! A kubeconfig file, read by way of a JSON value. `Kubeconfig::read_from` of the client library reads YAML into each of its
//! types, which is a third of a megabyte of program for a file that a driver in a pod never has.

use crate::words::chain;
use dracpu_topology::{read_regular, yaml};
use kube::config::Kubeconfig;
use serde::Deserialize as _;
use serde_json::Value;
use std::path::Path;

/// What is read of it. Certificates may stand in it; a megabyte is hundreds of them.
const MAX_BYTES: u64 = 1 << 20;

/// Reads it. What it names by a relative path is beside it, as for `kubectl`.
///
/// # Errors
/// Why it cannot be read, in one line that has no value of it.
pub(super) fn read(path: &Path) -> Result<Kubeconfig, String> {
    let text = read_regular(path, MAX_BYTES).map_err(|error| chain(&error))?;
    let value: Value = yaml::parse(&String::from_utf8_lossy(&text))?;
    if value.is_null() {
        return Err("it is empty".to_owned());
    }
    // What serde says of it quotes values, and here they are secrets.
    let mut file = Kubeconfig::deserialize(value).map_err(|_quotes_values| {
        "it has not the form of a kubeconfig: lists of `clusters`, `contexts` and `users`, whose values are text (what looks \
         like a number or a word of YAML needs quotes)"
            .to_owned()
    })?;
    let directory = path.parent().unwrap_or(Path::new(""));
    let beside = |named: &mut Option<String>| {
        if let Some(path) = named.as_mut().filter(|path| !path.is_empty()) {
            *path = directory.join(&*path).to_string_lossy().into_owned();
        }
    };
    for cluster in file.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        beside(&mut cluster.certificate_authority);
    }
    for user in file.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        beside(&mut user.client_certificate);
        beside(&mut user.client_key);
        beside(&mut user.token_file);
        // A command without a slash is looked for in PATH.
        if let Some(exec) =
            user.exec.as_mut().filter(|exec| exec.command.iter().any(|name| name.contains('/')))
        {
            beside(&mut exec.command);
        }
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Kubeconfig, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        std::fs::write(&path, text).unwrap();
        let below = directory.path().to_string_lossy().into_owned() + "/";
        let mut file = read(&path)?;
        let cut = |path: &mut Option<String>| {
            *path = path
                .take()
                .map(|path| path.strip_prefix(&below).map_or(path.clone(), |rest| format!("…{rest}")));
        };
        cut(&mut file.clusters[0].cluster.as_mut().unwrap().certificate_authority);
        let user = file.auth_infos[0].auth_info.as_mut().unwrap();
        cut(&mut user.client_certificate);
        cut(&mut user.client_key);
        cut(&mut user.token_file);
        if let Some(exec) = &mut user.exec {
            cut(&mut exec.command);
        }
        Ok(file)
    }

    #[test]
    fn what_it_names_by_a_relative_path_is_beside_it() {
        let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts:\n- name: c\n  context: {cluster: k, user: u}\n\
                    clusters:\n- name: k\n  cluster: {server: https://127.0.0.1:1, certificate-authority: ca.crt}\n\
                    users:\n- name: u\n  user:\n    client-certificate: pki/u.crt\n    client-key: /abs/u.key\n    \
                    tokenFile: token\n    exec: {apiVersion: v1, command: ./login}\n";
        let file = read_text(text).unwrap();
        assert_eq!(file.current_context.as_deref(), Some("c"));
        assert_eq!(file.contexts[0].context.as_ref().unwrap().cluster, "k");
        let cluster = file.clusters[0].cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:1"));
        assert_eq!(cluster.certificate_authority.as_deref(), Some("…ca.crt"));
        let user = file.auth_infos[0].auth_info.as_ref().unwrap();
        assert_eq!(user.client_certificate.as_deref(), Some("…pki/u.crt"));
        assert_eq!(user.client_key.as_deref(), Some("/abs/u.key"));
        assert_eq!(user.token_file.as_deref(), Some("…token"));
        assert_eq!(user.exec.as_ref().unwrap().command.as_deref(), Some("…./login"));
        let file = read_text(&text.replace("./login", "login")).unwrap();
        let exec = file.auth_infos[0].auth_info.as_ref().unwrap().exec.as_ref().unwrap();
        assert_eq!(exec.command.as_deref(), Some("login"), "in PATH");
    }

    #[test]
    fn what_is_no_kubeconfig_is_an_error_of_one_line() {
        for text in [
            "",
            "a: [",
            "clusters: 7",
            "eyJhbGci.SECRET",
            "users:\n- name: u\n  user: {token: SECRET, exec: SECRET}\n",
            "users:\n- name: u\n  user: {password: 987}\n",
            "users:\n- name: u\n  user: {token: 'SECRET\n",
        ] {
            let why = read_text(text).unwrap_err();
            assert!(!why.is_empty() && !why.contains('\n'), "{text}: {why}");
            assert!(!why.contains("SECRET") && !why.contains("987"), "{text}: {why}");
        }
        let directory = tempfile::tempdir().unwrap();
        assert!(read(&directory.path().join("none")).unwrap_err().contains("No such file"));
        assert!(read(directory.path()).unwrap_err().contains("a directory"));
        std::fs::write(directory.path().join("long"), vec![b' '; 2 << 20]).unwrap();
        assert!(read(&directory.path().join("long")).unwrap_err().contains("more than"));
    }
}
