//! Bytes → a compiled, linked component. The input is WebAssembly, always: code that somebody else
//! compiled would run as the driver itself.

use crate::strategy::bindings::{Strategy, StrategyPre};
use crate::strategy::limits::Limits;
use crate::strategy::log::Guest;
use crate::words::sentence;
use sha2::Digest as _;
use std::io::{self, Read};
use wasmtime::Engine;
use wasmtime::component::types::ComponentItem;
use wasmtime::component::{Component, HasSelf, Linker, ResourceType};

/// WASI interfaces that the Rust standard library of `wasm32-wasip2` imports even when nothing uses
/// them. A guest may hold them; calling one is a crash.
const STUBBED: [&str; 13] = [
    "wasi:cli/environment",
    "wasi:cli/exit",
    "wasi:cli/stderr",
    "wasi:cli/stdin",
    "wasi:cli/stdout",
    "wasi:cli/terminal-input",
    "wasi:cli/terminal-output",
    "wasi:cli/terminal-stderr",
    "wasi:cli/terminal-stdin",
    "wasi:cli/terminal-stdout",
    "wasi:io/error",
    "wasi:io/poll",
    "wasi:io/streams",
];

/// The interface's package, whose imports the host serves.
const OWN: &str = "dracpu:strategy/";

/// A file that is no strategy for this host.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ComponentFault {
    /// Too large to be compiled.
    #[error(
        "{size} bytes, {limit} are allowed; make the component smaller, or raise `limits.componentBytes`"
    )]
    TooLarge {
        /// Its size.
        size: u64,
        /// The limit.
        limit: u64,
    },
    /// Machine code of some wasmtime.
    #[error("precompiled code, which is never run: give the `.wasm` component that it was made from")]
    Precompiled,
    /// A module without the component layer.
    #[error("a core WebAssembly module, not a component: encode it with `wasm-tools component new`")]
    CoreModule,
    /// A compiler works on it.
    #[error(
        "still compiling; claims that need it are refused until it is done, and tried again by the kubelet"
    )]
    Compiling,
    /// Too little memory to compile it.
    #[error(
        "cannot compile: needs {} of memory, {} MiB are left under the limit of this container; raise its \
         memory limit (`resources.limits.memory` of the chart)",
        .needed.map_or_else(|| "more".to_owned(), |needed| format!("about {} MiB", needed.div_ceil(1 << 20))),
        .left >> 20
    )]
    NoMemory {
        /// Bytes, about; none where an estimate is lower than what is left, which did not suffice.
        needed: Option<u64>,
        /// Bytes.
        left: u64,
    },
    /// The compiler did not work.
    #[error("cannot compile: {0}")]
    NotCompiled(String),
    /// Not WebAssembly, or damaged.
    #[error("not a valid WebAssembly component: {0}")]
    Invalid(String),
    /// It wants what no strategy gets.
    #[error(
        "imports `{0}`, which no strategy gets (files, clocks, randomness, network and other components are out of reach): build it without"
    )]
    ForeignImport(String),
    /// It lacks the interface, or has another version of it.
    #[error("does not fit this host's strategy interface (`dracpu:strategy` 0.1): {0}")]
    Interface(String),
}

/// A function that no strategy may call was called.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Forbidden(pub(crate) String);

/// Links a component to what the host gives: the log, and refusals.
pub(crate) fn link(engine: &Engine, component: &Component) -> Result<StrategyPre<Guest>, ComponentFault> {
    let mut linker = Linker::new(engine);
    let interface = |error: wasmtime::Error| {
        ComponentFault::Interface(match other_version(engine, component) {
            Some(other) => {
                format!(
                    "it is built for {other}; build it with the SDK or the `wit/strategy.wit` of this release"
                )
            }
            None => format!("{error:#}"),
        })
    };
    Strategy::add_to_linker::<_, HasSelf<_>>(&mut linker, |guest: &mut Guest| guest).map_err(interface)?;
    for (name, item) in imports(engine, component) {
        if name.starts_with(OWN) {
            continue; // the linker compares versions and types
        }
        let ComponentItem::ComponentInstance(instance) = item else {
            return Err(ComponentFault::ForeignImport(name));
        };
        let interface_name = name.split_once('@').map_or(&*name, |(interface, _)| interface);
        if !STUBBED.contains(&interface_name) {
            return Err(ComponentFault::ForeignImport(name));
        }
        stub(&mut linker, engine, &name, &instance).map_err(interface)?;
    }
    linker.instantiate_pre(component).and_then(StrategyPre::new).map_err(interface)
}

/// An interface of the package that the component has in a version that is not compatible with this host's.
fn other_version(engine: &Engine, component: &Component) -> Option<String> {
    let mut names = imports(engine, component).map(|(name, _)| name).chain(exports(engine, component));
    names.find(|name| {
        let own = name.starts_with(OWN);
        own && name.split_once('@').is_some_and(|(_, version)| !version.starts_with("0.1."))
    })
}

/// Refuses what cannot be a component of the allowed size.
pub(crate) fn check(bytes: &[u8], limits: &Limits) -> Result<(), ComponentFault> {
    let size = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    if size > limits.component_bytes {
        return Err(ComponentFault::TooLarge { size, limit: limits.component_bytes });
    }
    if Engine::detect_precompiled(bytes).is_some() {
        return Err(ComponentFault::Precompiled);
    }
    // Magic, version 1, layer 0; components have layer 1 (component model, `Binary.md`).
    if bytes.starts_with(b"\0asm\x01\0\0\0") {
        return Err(ComponentFault::CoreModule);
    }
    if bytes.is_empty() {
        return Err(ComponentFault::Invalid("the file is empty".to_owned()));
    }
    if !bytes.starts_with(b"\0asm") {
        return Err(ComponentFault::Invalid("the file does not begin as WebAssembly does".to_owned()));
    }
    Ok(())
}

/// Compiles a component. Takes tens of milliseconds for small ones and minutes for large ones: never on the path of a
/// claim.
pub(crate) fn compile(engine: &Engine, bytes: &[u8]) -> Result<Component, ComponentFault> {
    Component::from_binary(engine, bytes).map_err(|error| ComponentFault::Invalid(clause(&error)))
}

/// The runtime's words in one line: it shows bytes and code over many.
pub(crate) fn clause(error: &wasmtime::Error) -> String {
    let text = format!("{error:#}");
    let words: Vec<&str> = text.split_whitespace().collect();
    sentence(&words.join(" ")).into_owned()
}

/// What a component imports, by name.
pub(crate) fn imports(
    engine: &Engine,
    component: &Component,
) -> impl Iterator<Item = (String, ComponentItem)> {
    let ty = component.component_type();
    ty.imports(engine).map(|(name, item)| (name.to_owned(), item.ty)).collect::<Vec<_>>().into_iter()
}

/// What a component exports, by name.
pub(crate) fn exports(engine: &Engine, component: &Component) -> impl Iterator<Item = String> {
    let ty = component.component_type();
    ty.exports(engine).map(|(name, _)| name.to_owned()).collect::<Vec<_>>().into_iter()
}

/// Links an interface of which every function refuses.
fn stub(
    linker: &mut Linker<Guest>,
    engine: &Engine,
    name: &str,
    instance: &wasmtime::component::types::ComponentInstance,
) -> wasmtime::Result<()> {
    let mut linker = linker.instance(name)?;
    for (item, extern_item) in instance.exports(engine) {
        match extern_item.ty {
            ComponentItem::ComponentFunc(_) => {
                let function = format!("{name}#{item}");
                linker.func_new(item, move |_, _, _, _| Err(Forbidden(function.clone()).into()))?;
            }
            ComponentItem::Resource(_) => linker.resource(item, ResourceType::host::<()>(), |_, _| Ok(()))?,
            _ => {}
        }
    }
    Ok(())
}

/// `sha256:` and the digest of the bytes in hexadecimal.
#[must_use]
pub fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&sha2::Sha256::digest(bytes)))
}

/// The SHA-256 of all that can be read, in hexadecimal.
pub(crate) fn hex_digest(mut from: impl Read) -> io::Result<String> {
    let mut hasher = sha2::Sha256::new();
    io::copy(&mut from, &mut hasher)?;
    Ok(hex(&hasher.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_component_is_said_in_one_line() {
        let engine = Engine::default();
        for (bytes, words) in [
            (b"".as_slice(), "the file is empty"),
            (b"#!/bin/sh\nexit\n", "does not begin as WebAssembly does"),
            (b"\0as", "does not begin as WebAssembly does"),
            (b"\0asm\x01\0\0\0", "a core WebAssembly module"),
            (b"\0asm\x07\0\x09\0", "not a valid WebAssembly component"),
            (b"\0asm\x0d\0\x01\0\xff\xff\xff", "not a valid WebAssembly component"),
        ] {
            let checked = check(bytes, &Limits::default()).and_then(|()| compile(&engine, bytes).map(drop));
            let fault = checked.unwrap_err().to_string();
            assert!(fault.contains(words) && !fault.contains('\n'), "{bytes:?}: {fault}");
        }
    }
}
