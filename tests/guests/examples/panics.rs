//! Panics, after a last word with an escape sequence in it.

use dracpu_test_guests::log::{Level, write};

dracpu_test_guests::guest!("panics", |_, _, _| {
    write(Level::Error, "about to panic\u{1b}[2J");
    panic!("no such luck");
});
