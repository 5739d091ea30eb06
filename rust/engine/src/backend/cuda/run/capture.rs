//! The cause of a failed capture, and the remedy.

use crate::backend::cuda::driver::check::Fault;
use crate::error::Error;

/// What a failed capture of `what` comes from, and what to do, in the order worth trying.
pub fn capture_failure(error: Error, what: &str, free: usize) -> Error {
    let what = format!("capturing {what}");
    let without =
        "load with graph=GraphOptions(mode=\"none\"), which launches every kernel separately";
    let free = free as f64 / f64::from(1 << 20);
    match error {
        Error::Memory { need, .. } => Error::Memory {
            need: format!("{what}: {need}; {free:.1} MiB were free before it"),
            remedy: format!(
                "1. free memory on the card; 2. capture less: smaller graph.batch_sizes or \
                 graph.max_batch; 3. use a smaller n_ctx or max_batch; 4. {without}"
            ),
        },
        Error::Driver {
            call, code, reason, ..
        } => {
            let (cause, first) = match Fault::of(code) {
                Fault::NoKernel => (
                    "a missing kernel",
                    "empty the kernel cache (onegraph info --devices says where) and load \
                     again; 2. reinstall onegraph and NVRTC",
                ),
                Fault::Lost => (
                    "a kernel that failed",
                    "restart the process: the CUDA context is lost; 2. report this",
                ),
                Fault::InCapture | Fault::Refused => (
                    "an illegal call",
                    "load again; 2. report this with the driver's version",
                ),
            };
            Error::Device {
                what,
                reason: format!("the cause is {cause}: {call} gave {reason}"),
                remedy: format!("1. {first}; 3. {without}"),
            }
        }
        // What is wrong with the list itself, such as a launch that became no node.
        Error::Internal(text) => Error::Internal(format!("{what}: {text}")),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn driver(code: u32, reason: &str) -> Error {
        Error::Driver {
            call: "cuGraphInstantiateWithFlags",
            code,
            reason: reason.into(),
            remedy: "see the driver's log",
        }
    }

    #[test]
    fn a_failed_capture_names_its_cause_and_numbers_its_advice() {
        let said = |error| capture_failure(error, "the decode step of 8 rows", 3 << 20);
        let memory = said(Error::Memory {
            need: "the driver could not give device memory".into(),
            remedy: String::new(),
        });
        assert!(matches!(memory, Error::Memory { .. }));
        let text = memory.to_string();
        for part in [
            "decode step of 8 rows",
            "3.0 MiB were free",
            "2. capture less",
            "4. load with",
        ] {
            assert!(text.contains(part), "{text}");
        }
        // The number decides, whatever the words are.
        for (code, reason, cause) in [
            (400, "invalid resource handle", "a missing kernel"),
            (901, "CUDA_ERROR_LAUNCH_FAILED in words", "an illegal call"),
            (719, "unspecified launch failure", "a kernel that failed"),
        ] {
            let text = said(driver(code, reason)).to_string();
            assert!(text.contains(&format!("the cause is {cause}")), "{text}");
            assert!(
                text.contains(reason) && text.contains("cuGraphInstantiateWithFlags"),
                "{text}"
            );
            assert!(
                text.contains("1. ")
                    && text.contains("3. load with graph=GraphOptions(mode=\"none\")"),
                "{text}"
            );
        }
        let list = said(Error::Internal(
            "3 launches were captured as 2 nodes".into(),
        ));
        assert!(list.to_string().contains("8 rows: 3 launches"), "{list}");
        assert_eq!(said(Error::Cancelled), Error::Cancelled);
    }
}
