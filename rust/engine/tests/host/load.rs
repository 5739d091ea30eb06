//! All that stands between a file's bytes and a backend, as one call.
use onegraph::arch;
use onegraph::config::Config;
use onegraph::gguf::Gguf;
use onegraph::plan::Plan;
use onegraph::tokenizer::Tokenizer;
use onegraph::Result;

/// Parses, range-checks, plans and builds the tokenizer; reads every byte of every tensor of a file that is accepted.
pub fn load(bytes: &[u8]) -> Result<Plan> {
    let gguf = Gguf::parse(bytes)?;
    for info in &gguf.tensors {
        if gguf.has_data && info.bytes > 0 {
            let data = &bytes[info.offset..info.offset + info.bytes];
            assert_eq!(data.len(), info.bytes);
        }
    }
    for (key, value) in &gguf.metadata {
        assert!(gguf.get(key).is_some(), "{key}");
        assert!(value.describe().len() < 1000);
    }
    // A damaged vocabulary must not hide what else is wrong, nor the other way round.
    let tokenizer = Tokenizer::from_gguf(&gguf);
    if let Ok(t) = &tokenizer {
        let ids = t.encode("ab é<s> abc", true, true);
        assert!(ids.iter().all(|id| (*id as usize) < t.n_vocab()));
        t.decode(&ids, false)?;
    }
    arch::find(Config::architecture(&gguf)?)?;
    let config = Config::new(&gguf, gguf.tensors.iter())?;
    let plan = arch::plan(&config)?;
    assert!(!plan.to_string().is_empty());
    tokenizer.map(|_| plan)
}
