#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dracpu_fuzz::Target::named("sysfs_trees").run(input));
