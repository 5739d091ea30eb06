//! Whether keys and values fit a machine, before they are written.

use std::path::Path;

use crate::backend::PAGE_TOKENS;
use crate::error::{Error, Result};
use crate::plan::KvShape;
use crate::quant::QuantType;

/// Bytes of keys and values of one page of all layers; `None` where heads do not fill blocks.
fn page_bytes(shape: KvShape, ty: &QuantType) -> Option<u64> {
    let head = ty.row_bytes(shape.head_dim)? as u64;
    [shape.n_layer, 2, shape.n_head_kv, PAGE_TOKENS]
        .iter()
        .try_fold(head, |bytes, n| bytes.checked_mul(*n as u64))
}

/// Memory of this machine, or of the control group that this process is confined to.
pub fn total() -> Option<u64> {
    total_below(Path::new("/"))
}

fn total_below(root: &Path) -> Option<u64> {
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let machine = read("proc/meminfo").and_then(|text| {
        let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    });
    let group = [
        "sys/fs/cgroup/memory.max",
        "sys/fs/cgroup/memory/memory.limit_in_bytes",
    ]
    .iter()
    .find_map(|path| read(path)?.trim().parse().ok());
    machine.into_iter().chain(group).min()
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
}

/// Refuses a cache that cannot fit even an idle machine. Pages take memory as they are first
/// written, so a cache that is larger than what is free right now may do well.
///
/// # Errors
/// [`Error::Memory`] with what is needed, what there is, and what would fit.
pub fn check(
    shape: KvShape,
    ty: &QuantType,
    n_ctx: usize,
    max_batch: usize,
    total: Option<u64>,
) -> Result<()> {
    // Where heads do not fill blocks, the cache itself says so.
    let (Some(total), Some(page)) = (total, page_bytes(shape, ty)) else {
        return Ok(());
    };
    let pages = (n_ctx.div_ceil(PAGE_TOKENS) as u64).saturating_mul(max_batch as u64);
    let need = pages.saturating_mul(page);
    if need <= total {
        return Ok(());
    }
    let fit = total / page;
    let context = fit / max_batch as u64 * PAGE_TOKENS as u64;
    let batch = fit / n_ctx.div_ceil(PAGE_TOKENS) as u64;
    let mut remedies = Vec::new();
    if context >= 2 {
        remedies.push(format!("n_ctx={context}"));
    }
    if batch >= 1 {
        remedies.push(format!("max_batch={batch}"));
    }
    Err(Error::Memory {
        need: format!(
            "keys and values of {max_batch} sequences of {n_ctx} tokens need {}, this machine has {}",
            gib(need),
            gib(total)
        ),
        remedy: match remedies.is_empty() {
            true => "use a smaller n_ctx and max_batch".into(),
            false => format!("{} would fit", remedies.join(" or ")),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant;

    const SHAPE: KvShape = KvShape {
        n_layer: 32,
        n_head_kv: 8,
        head_dim: 128,
    };

    fn check_on(n_ctx: usize, max_batch: usize, gib: u64) -> Result<()> {
        let ty = quant::by_name(quant::DEFAULT_KV).unwrap();
        check(SHAPE, ty, n_ctx, max_batch, Some(gib << 30))
    }

    #[test]
    fn what_does_not_fit_is_foreseen_with_what_would() {
        // 32 layers x 8 heads x 128 x 2 bytes x 2: 128 KiB a token, 1 GiB for 8192.
        assert_eq!(check_on(8192, 16, 16), Ok(()));
        let error = check_on(8192, 17, 16).unwrap_err();
        assert!(matches!(error, Error::Memory { .. }));
        let text = error.to_string();
        for part in [
            "17 sequences of 8192 tokens need 17.0 GiB, this machine has 16.0 GiB",
            "n_ctx=7680 or max_batch=16 would fit",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let text = check_on(1 << 20, 1024, 1).unwrap_err().to_string();
        assert!(text.contains("use a smaller n_ctx and max_batch"), "{text}");
        let ty = quant::by_name(quant::DEFAULT_KV).unwrap();
        assert_eq!(check(SHAPE, ty, 1 << 20, 1024, None), Ok(()));
    }

    #[test]
    fn memory_is_the_machines_or_the_groups() {
        let root = std::env::temp_dir().join(format!("onegraph-memory-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(total_below(&root), None);
        write("proc/meminfo", "MemTotal:       24576 kB\nMemFree: 1 kB\n");
        assert_eq!(total_below(&root), Some(24 << 20));
        write("sys/fs/cgroup/memory.max", "max\n");
        assert_eq!(total_below(&root), Some(24 << 20));
        write("sys/fs/cgroup/memory.max", "1048576\n");
        assert_eq!(total_below(&root), Some(1 << 20));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
