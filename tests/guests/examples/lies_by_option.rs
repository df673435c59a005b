//! Grants a CPU less than asked when its option `fast` is set.

use dracpu_test_guests::{Vices, members, set};

dracpu_test_guests::guest!("lies-by-option", vices: Vices {
    describe: |description| {
        description.options_schema =
            r#"{"type":"object","properties":{"fast":{"type":"boolean"}},"additionalProperties":false}"#.to_owned();
    },
    due: |requests| requests.iter().any(|request| request.options.contains("true")),
    decide: |decision, _, _| {
        for grant in &mut decision.grants {
            grant.cpus = set(members(&grant.cpus).skip(1));
        }
    },
    ..Vices::NONE
});
