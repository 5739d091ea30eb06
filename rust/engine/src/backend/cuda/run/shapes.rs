//! The shapes that kernels have on a card: a row of the table, or for those who look for a better one that of
//! the file that `ONEGRAPH_SHAPES` names.

use std::path::{Path, PathBuf};

use crate::backend::cuda::driver::info::DeviceInfo;
use crate::backend::cuda::lower::shapes::Shapes;
use crate::error::{Error, Result};

const NAMED: &str = "ONEGRAPH_SHAPES";

/// Why a card has a row.
#[derive(Debug, Clone, PartialEq)]
pub enum Chosen {
    /// It was measured on this kind of card.
    Own,
    /// It is the nearest by [`Shapes::of`].
    Nearest,
    /// The file has it.
    Named(PathBuf),
}

/// The row of a card.
///
/// # Errors
/// [`Error::Argument`] for a file that has none.
pub fn of(card: &DeviceInfo) -> Result<(Shapes, Chosen)> {
    let named = std::env::var_os(NAMED).filter(|name| !name.is_empty());
    chosen(card, named.as_ref().map(Path::new))
}

fn chosen(card: &DeviceInfo, named: Option<&Path>) -> Result<(Shapes, Chosen)> {
    let Some(path) = named else {
        let shapes = Shapes::of(card)?;
        let chosen = match shapes.is_of(card) {
            true => Chosen::Own,
            false => Chosen::Nearest,
        };
        return Ok((shapes, chosen));
    };
    let text = std::fs::read_to_string(path).map_err(|e| e.to_string());
    let shapes = text.and_then(|text| Shapes::read(&text));
    let refused = |reason| Error::Argument {
        name: NAMED,
        value: path.display().to_string(),
        reason,
    };
    Ok((shapes.map_err(refused)?, Chosen::Named(path.into())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_named_has_the_row() {
        let card = DeviceInfo::of_arch("sm_90", 132).unwrap();
        assert_eq!(chosen(&card, None).unwrap().1, Chosen::Nearest);
        let file = std::env::temp_dir().join(format!("shapes-{}.json", std::process::id()));
        std::fs::write(&file, "{}").unwrap();
        let text = chosen(&card, Some(&file)).unwrap_err().to_string();
        let name = file.display().to_string();
        assert!(text.contains(NAMED) && text.contains(&name), "{text}");
        assert!(text.contains("missing field"), "{text}");
        let table = include_str!("../lower/shapes.json");
        let table: Vec<serde_json::Value> = serde_json::from_str(table).unwrap();
        std::fs::write(&file, table[0].to_string()).unwrap();
        let found = chosen(&card, Some(&file)).unwrap();
        assert_eq!(
            found,
            (Shapes::of(&card).unwrap(), Chosen::Named(file.clone()))
        );
        std::fs::remove_file(&file).unwrap();
    }
}
