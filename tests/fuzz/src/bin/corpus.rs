//! Writes the seeds of every target where `cargo fuzz` looks for them.
use std::path::Path;

use onegraph_fuzz::{gguf, template, tokenizer, tools};

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (target, seeds) in [
        ("gguf", gguf::seeds()),
        ("tokenizer", tokenizer::seeds()),
        ("template", template::seeds()),
        ("tools", tools::seeds()),
    ] {
        let folder = corpus.join(target);
        std::fs::create_dir_all(&folder)?;
        for (i, seed) in seeds.iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{i}")), seed)?;
        }
        println!("{} seeds in {}", seeds.len(), folder.display());
    }
    Ok(())
}
