//! Explains itself in two megabytes.

dracpu_test_guests::guest!("huge-answer", |decision, _, _| decision.why = "because ".repeat(1 << 18));
