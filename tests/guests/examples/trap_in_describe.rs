//! Crashes when it is asked what it is.

use dracpu_test_guests::Vices;

dracpu_test_guests::guest!("trap-in-describe", vices: Vices { describe: |_| panic!("who am I"), ..Vices::NONE });
