//! What a failed capture comes from, and what to do.

use crate::error::Error;

/// Errors by which the driver says that a kernel is not there.
const NO_KERNEL: [&str; 4] = [
    "CUDA_ERROR_INVALID_HANDLE",
    "CUDA_ERROR_NOT_FOUND",
    "CUDA_ERROR_INVALID_IMAGE",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
];

/// Errors after which the context is lost.
const LOST: [&str; 4] = [
    "CUDA_ERROR_ILLEGAL_ADDRESS",
    "CUDA_ERROR_LAUNCH_FAILED",
    "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    "CUDA_ERROR_MISALIGNED_ADDRESS",
];

/// What a failed capture of `what` comes from, and what to do, in the order worth trying.
pub fn capture_failure(error: Error, what: &str, free: usize) -> Error {
    let what = format!("capturing {what}");
    let without = "load with cuda_graph=\"none\", which launches every kernel by itself";
    let free = free as f64 / f64::from(1 << 20);
    let reason = |text: &str, codes: &[&str]| codes.iter().any(|code| text.contains(code));
    match error {
        Error::Memory { need, .. } => Error::Memory {
            need: format!("{what}: {need}; {free:.1} MiB were free before it"),
            remedy: format!(
                "1. free memory on the card; 2. capture less: smaller graph_batch_sizes or \
                 graph_max_batch; 3. use a smaller n_ctx or max_batch; 4. {without}"
            ),
        },
        Error::Device {
            what: call,
            reason: said,
            ..
        } => {
            let (cause, first) = if reason(&said, &NO_KERNEL) {
                let advice =
                    "empty the kernel cache (onegraph info --devices says where) and load \
                              again; 2. reinstall onegraph and NVRTC";
                ("a missing kernel", advice)
            } else if reason(&said, &LOST) {
                let advice = "restart the process: the CUDA context is lost; 2. report this";
                ("a kernel that failed", advice)
            } else {
                let advice = "load again; 2. report this with the driver's version";
                ("an illegal call", advice)
            };
            Error::Device {
                what,
                reason: format!("the cause is {cause}: {call} gave {said}"),
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

    fn device(reason: &str) -> Error {
        Error::Device {
            what: "cuGraphInstantiateWithFlags".into(),
            reason: reason.into(),
            remedy: "see the driver's log".into(),
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
        for (reason, cause) in [
            (
                "CUDA_ERROR_INVALID_HANDLE (invalid resource handle)",
                "a missing kernel",
            ),
            (
                "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED (...)",
                "an illegal call",
            ),
            ("CUDA_ERROR_LAUNCH_FAILED (...)", "a kernel that failed"),
        ] {
            let text = said(device(reason)).to_string();
            assert!(text.contains(&format!("the cause is {cause}")), "{text}");
            assert!(
                text.contains(reason) && text.contains("cuGraphInstantiateWithFlags"),
                "{text}"
            );
            assert!(
                text.contains("1. ") && text.contains("3. load with cuda_graph=\"none\""),
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
