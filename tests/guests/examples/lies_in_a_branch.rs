//! Grants a CPU less than asked when an option is set that its schema has behind a reference, in one of two branches.

use dracpu_test_guests::{Vices, members, set};

dracpu_test_guests::guest!("lies-in-a-branch", vices: Vices {
    describe: |description| {
        description.options_schema = r##"{
            "type": "object",
            "definitions": { "pace": { "enum": ["slow", "fast"] } },
            "oneOf": [
                { "properties": { "near": { "type": "boolean" } }, "additionalProperties": false },
                { "properties": { "pace": { "$ref": "#/definitions/pace" } }, "required": ["pace"] }
            ]
        }"##.to_owned();
    },
    due: |requests| requests.iter().any(|request| request.options.contains("fast")),
    decide: |decision, _, _| {
        for grant in &mut decision.grants {
            grant.cpus = set(members(&grant.cpus).skip(1));
        }
    },
    ..Vices::NONE
});
