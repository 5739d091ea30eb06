//! What needs no card. Model files: what a good one holds, and what a damaged or hostile one does to us;
//! tokens, and calls of tools.
mod config;
mod control_tokens;
mod damage;
mod encoders;
mod families;
#[path = "../../../../tests/fuzz/src/lib.rs"]
mod fuzz;
mod heads;
mod held;
mod hostile;
mod info;
mod load;
mod mamba2;
mod mutate;
mod open;
mod smoke;
mod streams;
mod tools;
mod valid;

use fuzz::fixture;

/// The message of an error that must come; `kind` is its class.
#[track_caller]
fn message<T: std::fmt::Debug>(result: onegraph::Result<T>, kind: onegraph::error::Kind) -> String {
    let error = result.expect_err("this must fail");
    assert_eq!(error.kind(), kind, "{error}");
    error.to_string()
}

/// Asserts that a message says all of `parts`.
#[track_caller]
fn says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "{part:?} is not in: {message}");
    }
}
