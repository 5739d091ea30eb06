//! The native module `onegraph._native`: an export list.
use pyo3::prelude::*;

mod arguments;
pub mod devices;
pub mod doorbell;
pub mod embedding;
pub mod errors;
mod exit;
pub mod generation;
pub mod info;
pub mod llm;
pub mod quant;
mod runner;
pub mod sampling;
pub mod stop;
pub mod template;
pub mod tokenizer;
pub mod tools;

#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::devices::{check_sums, compile_kernels, cuda_devices, cuda_read_peak};
    #[pymodule_export]
    use super::doorbell::Doorbell;
    #[pymodule_export]
    use super::embedding::Embedding;
    #[pymodule_export]
    use super::generation::{Generated, Generation};
    #[pymodule_export]
    use super::info::{fused_plan, model_info, model_plan};
    #[pymodule_export]
    use super::llm::{Engine, Loading};
    #[pymodule_export]
    use super::quant::{dequantize, kv_types, quant_types, quantize};
    #[pymodule_export]
    use super::runner::PlanRunner;
    #[pymodule_export]
    use super::sampling::{check_graph_mode, check_sampling, sampling_defaults};
    #[pymodule_export]
    use super::stop::{go_on, Stop};
    #[pymodule_export]
    use super::template::{ChatTemplate, Rendering};
    #[pymodule_export]
    use super::tokenizer::{StreamDecoder, Tokenizer};
    #[pymodule_export]
    use super::tools::{tool_formats, Answer, Reading};

    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        m.add("__version__", env!("CARGO_PKG_VERSION"))?;
        m.add("MAX_SALT_BYTES", ::onegraph::engine::MAX_SALT_BYTES)?;
        m.add("MAX_STOP_TOKENS", ::onegraph::engine::MAX_STOP_TOKENS)?;
        m.add("DEFAULT_KV_TYPE", ::onegraph::quant::DEFAULT_KV)?;
        m.add(
            "DEFAULT_CACHE_DIR_BYTES",
            ::onegraph::engine::DEFAULT_DIR_BYTES,
        )?;
        errors::import_classes(m.py())?;
        exit::watch(m)?;
        // PyO3 lists every member in `__all__`; nobody star-imports a private module, and the stub
        // would have to repeat the list.
        m.delattr("__all__")
    }
}
