//! The doors for strangers' bytes. Each has `run`, which must neither panic nor take long whatever
//! the bytes are, and `seeds` to start from. Fuzz targets and the smoke test in CI share them.
#[path = "../../../rust/engine/tests/host/fixture.rs"]
pub mod fixture;
pub mod gguf;
pub mod template;
pub mod tokenizer;
pub mod tools;

/// Ends a part; no byte of UTF-8.
const PART: u8 = 0xff;
/// Ends an item of a part; no byte of UTF-8.
const ITEM: u8 = 0xfe;

/// Part after part, then empty ones.
fn parts(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    data.split(|b| *b == PART).chain(std::iter::repeat(&[][..]))
}

/// The items of a part as text.
fn items(part: &[u8]) -> Vec<String> {
    if part.is_empty() {
        return Vec::new();
    }
    part.split(|b| *b == ITEM)
        .map(|item| String::from_utf8_lossy(item).into_owned())
        .collect()
}

/// The inverse of [`parts`] and [`items`], for seeds.
fn join(parts: &[&[&[u8]]]) -> Vec<u8> {
    let parts: Vec<Vec<u8>> = parts.iter().map(|items| items.join(&ITEM)).collect();
    parts.join(&PART)
}
