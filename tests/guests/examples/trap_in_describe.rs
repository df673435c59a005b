//! Crashes before anything is known of it.

dracpu_test_guests::guest!("trap-in-describe", |_, _, _| (), || panic!("nothing to say"));
