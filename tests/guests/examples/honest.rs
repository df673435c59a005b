//! Keeps every rule.

dracpu_test_guests::guest!("honest", |_, _, _| ());
