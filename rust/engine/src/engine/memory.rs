//! What a model takes of a device, and whether it fits a machine, before anything is taken.

use std::path::Path;
use std::sync::Arc;

use super::device::Device;
use crate::backend::cuda::driver::device::info;
use crate::backend::cuda::study::fit;
use crate::backend::{cpu, pages_of, pool_pages, Needs, RunnerOptions, Weights, PAGE_TOKENS};
use crate::error::{Error, Result};
use crate::plan::{Plan, Share};

/// What loading `plan` with `options` takes of `device`.
///
/// # Errors
/// What is wrong with the options there, and what the driver says of a card.
pub fn needs(
    device: &Device,
    plan: &Arc<Plan>,
    weights: &dyn Weights,
    options: &RunnerOptions,
) -> Result<Needs> {
    match device {
        Device::Cpu => cpu::needs(plan, options),
        Device::Cuda(cards) => {
            let first = cards.first().copied().unwrap_or_default();
            fit::needs(&info(first)?, &own(plan, cards), weights, options)
        }
    }
}

/// What the first of several cards has of a plan; all of it where there is one. No other has more.
pub fn own(plan: &Arc<Plan>, cards: &[usize]) -> Arc<Plan> {
    match cards.len() {
        n @ 2.. => Arc::new(plan.shared(Share { rank: 0, cards: n })),
        _ => plan.clone(),
    }
}

/// Bytes of the host's memory for prefixes where nobody asks for another number: a conversation of
/// 60,000 tokens of an 8B model.
const MOST_PREFIXES: u64 = 8 << 30;

/// Memory in bytes, as far as the system tells.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// Of this machine, or of the control group that this process is confined to.
    total: Option<u64>,
    /// What can be had of it now without taking it from others; the file cache counts, for it gives
    /// way.
    available: Option<u64>,
    /// What the limits on this process (`ulimit -v`, `ulimit -d`) leave it to ask for.
    addresses: Option<u64>,
}

/// The number behind `name` in a file of lines such as `MemTotal: 24 kB`.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// A control group's files: limit, use, and the line of its statistics that says how much of that
/// the system takes back where it must.
const GROUPS: [[&str; 4]; 2] = [
    [
        "sys/fs/cgroup/memory.max",
        "sys/fs/cgroup/memory.current",
        "sys/fs/cgroup/memory.stat",
        "inactive_file ",
    ],
    [
        "sys/fs/cgroup/memory/memory.limit_in_bytes",
        "sys/fs/cgroup/memory/memory.usage_in_bytes",
        "sys/fs/cgroup/memory/memory.stat",
        "total_inactive_file ",
    ],
];

impl Room {
    /// On this machine, now.
    pub fn here() -> Self {
        Self::below(Path::new("/"))
    }

    /// Bytes for prefixes that were evicted from the device, where nobody says how many.
    pub fn for_prefixes(&self) -> usize {
        let quarter = self.available.map_or(0, |available| available / 4);
        usize::try_from(quarter.min(MOST_PREFIXES)).unwrap_or(usize::MAX)
    }

    fn below(root: &Path) -> Self {
        let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
        let number = |path: &str| -> Option<u64> { read(path)?.trim().parse().ok() };
        let machine = read("proc/meminfo").unwrap_or_default();
        let group = GROUPS.iter().find_map(|[limit, used, stat, cache]| {
            let limit = number(limit)?;
            let used = number(used).unwrap_or(0);
            let stat = read(stat).unwrap_or_default();
            let cache = stat
                .lines()
                .find_map(|l| l.strip_prefix(cache)?.parse().ok());
            let free = limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0)));
            Some((limit, free))
        });
        let least = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        Self {
            total: least(kib(&machine, "MemTotal:"), group.map(|(limit, _)| limit)),
            available: least(kib(&machine, "MemAvailable:"), group.map(|(_, free)| free)),
            addresses: Self::addresses(
                &read("proc/self/limits").unwrap_or_default(),
                &read("proc/self/status").unwrap_or_default(),
            ),
        }
    }

    fn addresses(limits: &str, status: &str) -> Option<u64> {
        let left = |limit: &str, used: &str| {
            let line = limits.lines().find_map(|l| l.strip_prefix(limit))?;
            let soft: u64 = line.split_whitespace().next()?.parse().ok()?;
            Some(soft.saturating_sub(kib(status, used)?))
        };
        let space = left("Max address space", "VmSize:");
        let data = left("Max data size", "VmData:");
        space.into_iter().chain(data).min()
    }
}

fn gib(bytes: u64) -> String {
    match bytes as f64 / (1u64 << 30) as f64 {
        small if small < 0.1 => format!("{:.1} MiB", small * 1024.0),
        gib => format!("{gib:.1} GiB"),
    }
}

/// Refuses what cannot fit: keys and values beyond an idle machine (pages take memory as they are
/// first written, so a cache that is larger than what is free right now may do well), activations
/// and scratch beyond what is available, and all of them beyond the limits on this process.
///
/// # Errors
/// [`Error::Memory`] with what is needed, what there is, and what would fit.
pub fn check(plan: &Plan, needs: &Needs, options: &RunnerOptions, room: &Room) -> Result<()> {
    check_kv(needs, options, room)?;
    let short = |bytes: u64, room: Option<u64>| room.filter(|room| bytes > *room);
    let working = needs.working();
    let all = working.saturating_add(needs.kv);
    let parts = format!(
        "activations of {} rows {}, scratch of {} threads {}",
        cpu::most_rows(plan, options),
        gib(needs.activations),
        options.threads,
        gib(needs.scratch)
    );
    let need = if let Some(available) = short(working, room.available) {
        format!(
            "needs {} ({parts}), but {} are available",
            gib(working),
            gib(available)
        )
    } else if let Some(left) = short(all, room.addresses) {
        format!(
            "needs {} (keys and values {}, {parts}), but the limits on this process (ulimit -v, \
             ulimit -d) allow {}",
            gib(all),
            gib(needs.kv),
            gib(left)
        )
    } else {
        return Ok(());
    };
    Err(Error::Memory {
        need,
        remedy: "use a smaller n_ctx, max_batch or number of threads, or free some memory".into(),
    })
}

fn check_kv(needs: &Needs, options: &RunnerOptions, room: &Room) -> Result<()> {
    let Some(total) = room.total.filter(|total| needs.kv > *total) else {
        return Ok(());
    };
    let (n_ctx, max_batch) = (options.n_ctx, options.n_slots);
    let page = needs.kv.saturating_sub(needs.windows) / options.n_pages as u64;
    // One page is nobody's. Of layers that see a window a shorter context takes no less.
    let rest = total.saturating_sub(needs.windows);
    let fit = (rest / page.max(1)).saturating_sub(1);
    if options.n_pages < pool_pages(max_batch, n_ctx) {
        let tokens = |pages: u64| pages.saturating_mul(PAGE_TOKENS as u64);
        return Err(Error::Memory {
            need: format!(
                "keys and values of {} tokens need {}, but this machine has {}",
                tokens(options.n_pages as u64 - 1),
                gib(needs.kv),
                gib(total)
            ),
            remedy: match fit >= pages_of(n_ctx) as u64 {
                true => format!("kv_tokens={} would fit", tokens(fit)),
                false => "use a smaller n_ctx and kv_tokens".into(),
            },
        });
    }
    let context = fit / max_batch as u64 * PAGE_TOKENS as u64;
    let batch = fit / pages_of(n_ctx) as u64;
    let mut remedies = Vec::new();
    if context >= 2 {
        remedies.push(format!("n_ctx={context}"));
    }
    if batch >= 1 {
        remedies.push(format!("max_batch={batch}"));
    }
    Err(Error::Memory {
        need: format!(
            "keys and values of {max_batch} sequences of {n_ctx} tokens need {}, but this \
             machine has {}",
            gib(needs.kv),
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
    use crate::backend::GpuOptions;
    use crate::quant;

    const GIB: u64 = 1 << 30;

    fn options(n_ctx: usize, max_batch: usize) -> RunnerOptions {
        RunnerOptions {
            n_slots: max_batch,
            n_ctx,
            n_pages: pool_pages(max_batch, n_ctx),
            windows: None,
            kv_type: quant::kv_by_name(quant::DEFAULT_KV).unwrap(),
            threads: 2,
            gpu: GpuOptions::default(),
        }
    }

    /// 32 layers x 8 heads x 128 x 2 bytes x 2: 128 KiB a token, 1 GiB for 8192.
    fn check_kv_on(n_ctx: usize, max_batch: usize, gib: u64) -> Result<()> {
        let options = options(n_ctx, max_batch);
        let needs = Needs {
            weights: 0,
            windows: 0,
            kv: (options.n_pages as u64) << 23,
            activations: GIB,
            scratch: GIB,
        };
        let room = Room {
            total: Some(gib << 30),
            ..Room::default()
        };
        check(&Plan::default(), &needs, &options, &room)
    }

    #[test]
    fn keys_and_values_beyond_the_machine_are_foreseen_with_what_would_fit() {
        assert_eq!(check_kv_on(8192, 15, 16), Ok(()));
        let error = check_kv_on(8192, 17, 16).unwrap_err();
        assert!(matches!(error, Error::Memory { .. }));
        let text = error.to_string();
        for part in [
            "17 sequences of 8192 tokens need 17.0 GiB, but this machine has 16.0 GiB",
            "n_ctx=7680 or max_batch=15 would fit",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let shared = |n_ctx: usize, gib: u64| {
            let options = RunnerOptions {
                n_pages: pool_pages(1, 1 << 20),
                ..options(n_ctx, 1024)
            };
            let needs = Needs {
                weights: 0,
                kv: (options.n_pages as u64) << 23,
                activations: 0,
                scratch: 0,
                windows: 0,
            };
            let room = Room {
                total: Some(gib << 30),
                ..Room::default()
            };
            check(&Plan::default(), &needs, &options, &room)
                .unwrap_err()
                .to_string()
        };
        let text = shared(8192, 16);
        for part in [
            "of 1048576 tokens need 128.0 GiB",
            "kv_tokens=131008 would fit",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let text = shared(1 << 20, 16);
        assert!(text.contains("use a smaller n_ctx and kv_tokens"), "{text}");
        let text = check_kv_on(1 << 20, 1024, 1).unwrap_err().to_string();
        assert!(text.contains("use a smaller n_ctx and max_batch"), "{text}");
        let needs = Needs {
            weights: 0,
            windows: 0,
            kv: u64::MAX,
            activations: u64::MAX,
            scratch: u64::MAX,
        };
        assert_eq!(
            check(&Plan::default(), &needs, &options(2, 1), &Room::default()),
            Ok(())
        );
    }

    #[test]
    fn activations_beyond_what_is_available_are_foreseen() {
        let needs = Needs {
            weights: 0,
            windows: 0,
            kv: 4 * GIB,
            activations: 2 * GIB,
            scratch: GIB / 20,
        };
        let on = |available: u64, addresses: u64| {
            let room = Room {
                total: Some(64 * GIB),
                available: Some(available),
                addresses: Some(addresses),
            };
            check(&Plan::default(), &needs, &options(8192, 1), &room).map_err(|e| e.to_string())
        };
        // Keys and values need not be free yet; to ask for them, there must be addresses.
        assert_eq!(on(3 * GIB, 7 * GIB), Ok(()));
        let text = on(GIB, 7 * GIB).unwrap_err();
        for part in [
            "needs 2.0 GiB",
            "activations of 256 rows 2.0 GiB, scratch of 2 threads 51.2 MiB",
            "1.0 GiB are available",
            "use a smaller n_ctx, max_batch or number of threads",
        ] {
            assert!(text.contains(part), "{text}");
        }
        let text = on(3 * GIB, 6 * GIB).unwrap_err();
        for part in ["needs 6.0 GiB", "keys and values 4.0 GiB", "allow 6.0 GiB"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn memory_is_the_machines_or_the_groups_or_what_the_limits_leave() {
        let root = std::env::temp_dir().join(format!("onegraph-memory-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let room = |total, available, addresses| Room {
            total,
            available,
            addresses,
        };
        assert_eq!(Room::below(&root), Room::default());
        write(
            "proc/meminfo",
            "MemTotal:       24576 kB\nMemFree: 1 kB\nMemAvailable:   8192 kB\n",
        );
        let machine = room(Some(24 << 20), Some(8 << 20), None);
        assert_eq!(Room::below(&root), machine);
        write("sys/fs/cgroup/memory.max", "max\n");
        assert_eq!(Room::below(&root), machine);
        // Half of what the group uses is cached files, which the kernel drops on demand.
        write("sys/fs/cgroup/memory.max", "4194304\n");
        write("sys/fs/cgroup/memory.current", "2097152\n");
        write(
            "sys/fs/cgroup/memory.stat",
            "anon 1\ninactive_file 1048576\nactive_file 7\n",
        );
        assert_eq!(Room::below(&root), room(Some(4 << 20), Some(3 << 20), None));
        let limits = |space: &str, data: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units\n\
                 Max data size             {data}            unlimited            bytes\n\
                 Max address space         {space}            unlimited            bytes\n"
            )
        };
        write(
            "proc/self/status",
            "VmSize:\t    1024 kB\nVmData:\t     512 kB\n",
        );
        write("proc/self/limits", &limits("unlimited", "unlimited"));
        assert_eq!(Room::below(&root).addresses, None);
        write("proc/self/limits", &limits("3145728", "unlimited"));
        assert_eq!(Room::below(&root).addresses, Some(2 << 20));
        write("proc/self/limits", &limits("3145728", "1572864"));
        assert_eq!(Room::below(&root).addresses, Some(1 << 20));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn this_machine_tells() {
        let room = Room::here();
        assert!(room.available.unwrap() <= room.total.unwrap());
    }
}
