//! The table of shapes: what was the fastest on a card in whole steps, row by row of `shapes.json`. Each has
//! its record in `benches/records`, where `benches/tune.py` writes what was compared. No bit depends on them.

use serde::Deserialize;
use serde_json::Value;

use super::shape::{MOST_BLOCK_ROWS, MOST_BLOCK_X, TILE_ROWS};
use super::x_tile::X_TILE_ROWS;
use crate::backend::cuda::driver::info::DeviceInfo;
use crate::error::{Error, Result};

const TABLE: &str = include_str!("shapes.json");

/// Largest number of a row.
const MOST: u64 = 1 << 32;

/// Groups of numbers of a row.
macro_rules! numbers {
    ($($(#[$meta:meta])* $name:ident { $($(#[$field_meta:meta])* $field:ident,)* })*) => {$(
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: usize,)*
        }
    )*};
}

numbers! {
    /// matvec.cu. Shares of shared memory are in per cent of what a block may have.
    MatVec {
        /// Of a block; and where a few more have a superblock each.
        warps, most_warps,
        /// Tiles of a group of warps between two barriers, and in flight a warp.
        round, ring,
        /// Tiles a warp that are asked for before x: what is asked for first arrives first.
        ahead,
        /// What short rows take, and long ones, where a light successor is to begin beside them.
        shared_short, shared_long,
        /// Threads of a block up to which it keeps columns of x in registers beside a light neighbour.
        holding_threads,
        /// Columns from which rows are long, and bytes of weights from which tiles in flight are preferred.
        long_row, many_bytes,
        /// Tiles of a block up to which a product is light: it begins, and asks for all that it reads, beside
        /// any predecessor. Its warps, and what it takes.
        light_tiles, light_warps, shared_light,
        /// Rows up to which products by experts take each by itself.
        expert_rows,
    }

    /// matvec_floats.cu
    Floats {
        warps,
        /// Rows of x from which a warp takes half a tile at once.
        many_rows,
        /// Bytes of x in shared memory, and most of weights.
        x_bytes, staged_bytes,
    }

    /// skinny.cu
    Skinny {
        /// Of a block: four a scheduler hide each other's latencies.
        warps,
        /// Tiles in flight a warp, and those that are asked for before x.
        ring, ahead,
        /// Per cent of shared memory that a block takes.
        shared,
        /// Warps of up to four rows, and their `ahead`, where 96 registers a thread are enough: not for several
        /// matrices of so many bits a weight, nor for eight bits.
        more_warps, more_ahead, wide_bits,
        /// Warps of five to eight rows on cards without wgmma, where the compiler takes more registers.
        few_warps,
        /// Warps with two tiles each, of so many bits a weight at least: what is read of x serves both.
        pair_warps, pair_bits,
        /// Superblocks of a part up to which one tile a warp is worth the while where pairs do not fit.
        unpaired_superblocks,
    }

    /// attention_fixed.cu
    Attention {
        /// Of a single row: heads of a block, its teams of heads up to `teams_dim` wide, per cent of shared memory.
        heads, teams, teams_dim, shared,
        /// The same of contexts from `long_context` tokens on, where so many parts a team have room.
        long_context, long_teams, long_parts,
        /// Several teams share a block as long as they have so many bytes of keys together; of several rows
        /// with more than four heads, at most so many.
        team_bytes, wide_teams,
        /// Parts, a page's keys or its values, in shared memory.
        parts,
    }
}

/// Warps over rows of weights and over rows of x, tiles of both a warp, blocks an SM.
pub type Block = [usize; 5];

/// Blocks to choose from, up to a number of rows of x each.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ByRows(Vec<(Option<usize>, Vec<Block>)>);

impl ByRows {
    pub fn of(&self, rows: usize) -> &[Block] {
        let fits = |(most, _): &&(Option<usize>, _)| most.is_none_or(|most| rows <= most);
        self.0.iter().find(fits).map_or(&[], |(_, blocks)| blocks)
    }
}

/// matmul.cu
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatMul {
    /// Stages in flight.
    pub ring: usize,
    /// More rows than these have the blocks of prompts where a block goes through more superblocks than these.
    pub short_rows: usize,
    pub short_superblocks: usize,
    /// By warpgroups, and by warps; where these do not fit, the first of `smaller` that does.
    pub warpgroups: ByRows,
    pub warps: ByRows,
    pub smaller: Vec<Block>,
    /// Of few rows, in the place of blocks that leave SMs idle.
    pub halved: Block,
}

/// prompt_attention_fixed.cu
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prompt {
    /// Of a block, 16 queries each; and where that would leave half the card idle.
    pub warps: usize,
    pub few_warps: usize,
    /// Rows that the kernel for steps takes.
    pub few_rows: usize,
    /// Pages in shared memory, of one byte a number and of two.
    pub pages: [usize; 2],
}

/// A row: the card that it was measured on, and what was the fastest there.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shapes {
    /// Its name.
    pub card: String,
    pub compute: (u32, u32),
    pub sm_count: u32,
    /// A file of `benches/records`.
    pub record: String,
    pub matvec: MatVec,
    pub floats: Floats,
    pub skinny: Skinny,
    pub matmul: MatMul,
    pub attention: Attention,
    pub prompt: Prompt,
}

impl Shapes {
    /// Those of a card: its own row; or else the nearest, of the same major version if there is one, then by the
    /// ratio of multiprocessors.
    ///
    /// # Errors
    /// [`Error::Internal`] for a table that is none.
    pub fn of(card: &DeviceInfo) -> Result<Self> {
        let broken = |e| Error::Internal(format!("shapes.json: {e}"));
        let rows: Vec<Value> = serde_json::from_str(TABLE).map_err(|e| broken(e.to_string()))?;
        let rows: std::result::Result<Vec<_>, _> = rows.into_iter().map(Self::checked).collect();
        let nearest = Self::nearest(rows.map_err(broken)?, card);
        nearest.ok_or_else(|| broken("no row".into()))
    }

    fn nearest(rows: Vec<Self>, card: &DeviceInfo) -> Option<Self> {
        rows.into_iter().min_by_key(|row| {
            let (a, b) = (card.sm_count.max(1), row.sm_count.max(1));
            // In thousandths, to be compared.
            let ratio = 1000 * u64::from(a.max(b)) / u64::from(a.min(b));
            (!row.is_of(card), row.compute.0 != card.compute.0, ratio)
        })
    }

    /// The row that a text is; or what is wrong with it.
    pub fn read(text: &str) -> std::result::Result<Self, String> {
        Self::checked(serde_json::from_str(text).map_err(|e| e.to_string())?)
    }

    /// A row all of whose numbers can be of shapes.
    fn checked(row: Value) -> std::result::Result<Self, String> {
        check("", &row)?;
        let row: Self = serde_json::from_value(row).map_err(|e| e.to_string())?;
        let of = &row.matmul;
        let by_rows = [&of.warpgroups, &of.warps].into_iter().flat_map(|w| &w.0);
        let blocks = by_rows.flat_map(|(_, blocks)| blocks);
        for block in blocks.chain(&of.smaller).chain([&of.halved]) {
            let [warps_r, warps_n, w_tiles, n_tiles, _] = block;
            let (rows, x) = (
                TILE_ROWS * warps_r * w_tiles,
                X_TILE_ROWS * warps_n * n_tiles,
            );
            if warps_r * warps_n < 2 || rows > MOST_BLOCK_ROWS || x > MOST_BLOCK_X {
                return Err(format!(
                    "matmul: {block:?} has a single warp, or more than {MOST_BLOCK_ROWS} rows of \
                     weights or {MOST_BLOCK_X} of x"
                ));
            }
        }
        Ok(row)
    }

    /// Whether it was measured on this kind of card.
    pub fn is_of(&self, card: &DeviceInfo) -> bool {
        (&self.card, self.compute, self.sm_count) == (&card.name, card.compute, card.sm_count)
    }
}

/// Whether all numbers of the field `name` of a row can be of shapes.
fn check(name: &str, value: &Value) -> std::result::Result<(), String> {
    let most = match name {
        "compute" => return Ok(()),
        // In a list.
        "" => 1 << 16,
        _ if name.ends_with("warps") => 32,
        _ if name.starts_with("shared") => 100,
        _ => MOST,
    };
    match value {
        Value::Array(list) => list.iter().try_for_each(|value| check("", value)),
        Value::Object(fields) => {
            let its = |(field, value): (&String, &Value)| {
                check(field, value).map_err(|e| format!("{name} {e}"))
            };
            fields.iter().try_for_each(its)
        }
        Value::Number(n) if !n.as_u64().is_some_and(|n| (1..=most).contains(&n)) => {
            Err(format!("{name} = {n}: must be from 1 to {most}"))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_its_own_row_or_the_nearest() {
        let card = DeviceInfo::of_arch("sm_86", 84).unwrap();
        let row = Shapes::of(&card).unwrap();
        let of = |name: &str, compute, sm_count| Shapes {
            card: name.into(),
            compute,
            sm_count,
            ..row.clone()
        };
        let mut rows = vec![of("major", (8, 9), 20), of("other", (9, 0), 84)];
        let found = |rows: &[Shapes]| Shapes::nearest(rows.to_vec(), &card).unwrap().card;
        assert_eq!(found(&rows), "major");
        rows.push(of("nearer", (8, 0), 108));
        assert_eq!(found(&rows), "nearer");
        // Another kind of card that looks the same, and its own.
        rows.push(of("like", (8, 6), 84));
        assert!(found(&rows) == "like" && !rows[3].is_of(&card));
        rows.push(of(&card.name, (8, 6), 84));
        assert!(found(&rows) == card.name && rows[4].is_of(&card));
    }

    #[test]
    fn what_is_no_row_is_refused_with_the_place() {
        let table: Vec<Value> = serde_json::from_str(TABLE).unwrap();
        for row in &table {
            let file = format!("../../benches/records/{}", row["record"].as_str().unwrap());
            let record = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
            assert!(record.exists(), "{}", record.display());
        }
        let refused = |change: fn(&mut Value)| {
            let mut row = table[0].clone();
            change(&mut row);
            Shapes::read(&row.to_string()).unwrap_err()
        };
        for (change, said) in [
            (
                (|row| row["matvec"]["warps"] = 0.into()) as fn(&mut Value),
                "matvec warps = 0: must be from 1 to 32",
            ),
            (
                |row| row["attention"]["shared"] = 101.into(),
                "shared = 101",
            ),
            (
                |row| row["matvec"]["warp"] = 1.into(),
                "unknown field `warp`",
            ),
            (|row| row["skinny"] = Value::Null, "Skinny"),
            (
                |row| row["matmul"]["halved"][3] = 16.into(),
                "[4, 1, 1, 16, 4] has a single warp, or more than 256 rows of weights or 64 of x",
            ),
        ] {
            let text = refused(change);
            assert!(text.contains(said), "{text}");
        }
    }
}
