//! Which backend a device name means on this machine.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::plan::MOST_CARDS;

/// Where a model runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Device {
    Cpu,
    /// Cards by their numbers: one, or several that compute together.
    Cuda(Vec<usize>),
}

impl Device {
    /// Its name, as [`resolve`] takes it.
    pub fn name(&self) -> String {
        match self {
            Device::Cpu => "cpu".into(),
            Device::Cuda(all) => {
                let all: Vec<String> = all.iter().map(usize::to_string).collect();
                format!("cuda:{}", all.join(","))
            }
        }
    }
}

/// What a machine shows of an NVIDIA card without loading a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Nvidia {
    /// A device node of the kernel driver.
    card: bool,
    /// `libcuda.so.1`.
    library: bool,
}

/// Folders that hold the driver's library on the usual systems.
const LIBRARY_FOLDERS: &[&str] = &[
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",
    "usr/local/nvidia/lib64",
    "run/opengl-driver/lib",
];

impl Nvidia {
    /// Looks below `root`, and for the library also in `folders`.
    fn look(root: &Path, folders: impl Iterator<Item = PathBuf>) -> Self {
        // `nvidia0`, not `nvidiactl`: the driver may be loaded on a machine without a card. On
        // WSL all cards are behind one node, and the library's folder is mounted for them.
        let numbered = std::fs::read_dir(root.join("dev")).is_ok_and(|nodes| {
            nodes.flatten().any(|node| {
                let name = node.file_name();
                let number = name.to_str().and_then(|n| n.strip_prefix("nvidia"));
                number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
            })
        });
        let wsl =
            root.join("dev/dxg").exists() && root.join("usr/lib/wsl/lib/libcuda.so.1").exists();
        let mut places = LIBRARY_FOLDERS.iter().map(|f| root.join(f)).chain(folders);
        Self {
            card: numbered || wsl,
            library: places.any(|folder| folder.join("libcuda.so.1").exists()),
        }
    }

    fn here() -> Self {
        let folders = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        Self::look(Path::new("/"), std::env::split_paths(&folders))
    }
}

/// The device that `name` means: `auto`, `cpu`, `cuda`, `cuda:N` or `cuda:N,M`.
///
/// # Errors
/// [`Error::Argument`] for another name, [`Error::Device`] with the reason where a card is asked
/// for, or is there, and cannot be used.
pub fn resolve(name: &str) -> Result<Device> {
    resolve_on(name, Nvidia::here)
}

fn resolve_on(name: &str, look: impl FnOnce() -> Nvidia) -> Result<Device> {
    match name {
        "cpu" => Ok(Device::Cpu),
        "auto" => match look() {
            Nvidia { card: false, .. } => Ok(Device::Cpu),
            nvidia => cuda(name, vec![0], nvidia),
        },
        "cuda" => cuda(name, vec![0], look()),
        _ => {
            let refused = |reason: String| Error::Argument {
                name: "device",
                value: format!("{name:?}"),
                reason,
            };
            let numbers = name.strip_prefix("cuda:").and_then(numbers);
            let numbers = numbers.ok_or_else(|| {
                refused("must be auto, cpu, cuda, cuda:N or cuda:N,M, N and M card numbers".into())
            })?;
            let n = numbers.len();
            let mut each = numbers.clone();
            each.sort_unstable();
            each.dedup();
            match each.len() < n {
                true => Err(refused("names a card twice".into())),
                false if n > MOST_CARDS => Err(refused(format!(
                    "{n} cards: a model runs on up to {MOST_CARDS}"
                ))),
                false => cuda(name, numbers, look()),
            }
        }
    }
}

/// Card numbers with commas between them.
fn numbers(text: &str) -> Option<Vec<usize>> {
    let number = |n: &str| {
        let is_one = !n.is_empty() && n.len() < 4 && n.bytes().all(|b| b.is_ascii_digit());
        is_one.then(|| n.parse().ok()).flatten()
    };
    text.split(',').map(number).collect()
}

/// Why this machine has no card for `auto`.
pub fn no_card() -> &'static str {
    why_none(Nvidia::here())
}

fn why_none(nvidia: Nvidia) -> &'static str {
    if nvidia.library {
        "the NVIDIA driver's library (libcuda.so.1) exists, but no card (/dev/nvidia0): give a \
         container access, as with docker run --gpus all"
    } else {
        "no NVIDIA driver found: neither a card (/dev/nvidia0) nor its library (libcuda.so.1)"
    }
}

/// Cards, where the driver can be asked for them: what is wrong with the driver or a card, it
/// says itself when the model is loaded.
fn cuda(name: &str, numbers: Vec<usize>, nvidia: Nvidia) -> Result<Device> {
    let reason = match nvidia {
        Nvidia { library: true, .. } => return Ok(Device::Cuda(numbers)),
        Nvidia { card: false, .. } => why_none(nvidia),
        Nvidia { card: true, .. } => {
            "there is an NVIDIA card, but not the driver's library (libcuda.so.1)"
        }
    };
    Err(Error::Device {
        what: format!("device {name:?}"),
        reason: reason.into(),
        remedy: "install the NVIDIA driver, or use device=\"cpu\"".into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(name: &str, card: bool, library: bool) -> Result<Device> {
        resolve_on(name, || Nvidia { card, library })
    }

    #[test]
    fn auto_is_the_cpu_only_where_there_is_no_card() {
        assert_eq!(on("auto", false, false), Ok(Device::Cpu));
        assert_eq!(on("auto", false, true), Ok(Device::Cpu));
        assert_eq!(on("cpu", true, true), Ok(Device::Cpu));
        assert_eq!(on("auto", true, true), Ok(Device::Cuda(vec![0])));
        assert!(on("auto", true, false).is_err());
    }

    #[test]
    fn a_card_that_cannot_be_used_is_an_error_with_the_reason() {
        for (card, reason) in [
            (false, "no NVIDIA driver found"),
            (true, "not the driver's library"),
        ] {
            for name in ["cuda", "cuda:0", "cuda:12"] {
                let error = on(name, card, false).unwrap_err();
                assert!(matches!(error, Error::Device { .. }));
                let text = error.to_string();
                assert!(text.contains(reason) && text.contains(name), "{text}");
                assert!(text.contains("device=\"cpu\""), "{text}");
            }
        }
        let cards = |all: &[usize]| Ok(Device::Cuda(all.to_vec()));
        assert_eq!(on("cuda:12", false, true), cards(&[12]));
        assert_eq!(on("cuda:2,0", false, true), cards(&[2, 0]));
    }

    #[test]
    fn the_cpu_says_what_it_lacks_of_a_card() {
        let none = |library| {
            why_none(Nvidia {
                card: false,
                library,
            })
        };
        assert!(none(false).starts_with("no NVIDIA driver found"));
        assert!(none(true).contains("but no card (/dev/nvidia0): give a container"));
    }

    #[test]
    fn other_names_are_refused() {
        for name in [
            "",
            "gpu",
            "cuda:",
            "cuda:x",
            "cuda:-1",
            "cuda:1234",
            "CPU",
            "cuda:0,",
            "cuda:0,0",
            "cuda:,1",
            "cuda:0,1,2,3,4",
        ] {
            let error = on(name, true, true).unwrap_err();
            assert!(
                matches!(error, Error::Argument { name: "device", .. }),
                "{error}"
            );
        }
    }

    #[test]
    fn a_card_is_a_numbered_node() {
        let root = std::env::temp_dir().join(format!("onegraph-device-{}", std::process::id()));
        let make = |path: &str| {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        let look = || Nvidia::look(&root, [root.join("extra")].into_iter());
        make("dev/nvidiactl");
        make("dev/nvidia-uvm");
        assert_eq!(
            look(),
            Nvidia {
                card: false,
                library: false
            }
        );
        make("extra/libcuda.so.1");
        assert_eq!(
            look(),
            Nvidia {
                card: false,
                library: true
            }
        );
        make("dev/nvidia1");
        assert_eq!(
            look(),
            Nvidia {
                card: true,
                library: true
            }
        );
        std::fs::remove_dir_all(&root).unwrap();
    }
}
