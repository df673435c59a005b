#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| dracpu_fuzz::Target::named("cpu_lists").run(input));
