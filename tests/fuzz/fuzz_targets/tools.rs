#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| onegraph_fuzz::tools::run(data));
