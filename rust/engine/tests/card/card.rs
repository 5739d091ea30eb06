//! The card that tests run on, a real or a simulated one.

use std::path::Path;
use std::sync::Arc;

use onegraph::backend::cuda::driver::context::Context;

/// The first card; where there is none, why, as what is printed of a test that is left out.
pub fn context() -> Option<Arc<Context>> {
    // Kernels are compiled once a build, not once a run.
    let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    std::env::set_var("ONEGRAPH_CACHE_DIR", cache);
    match Context::new(0) {
        Ok(context) => Some(context),
        Err(error) => {
            // Where a card is simulated, all must run.
            let is_simulated = std::env::var_os("ONEGRAPH_NVRTC").is_some();
            assert!(!is_simulated, "{error}");
            eprintln!("skipped: {error}; `.ci/run` shows how to simulate a card");
            None
        }
    }
}
