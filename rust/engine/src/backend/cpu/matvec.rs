//! Mat-vecs of a step, cut into jobs for the threads. The cut changes no bit: a sum belongs to one
//! job, and its order to [`super::exact`] for weights that are small integers, to
//! [`super::product`] for floats.

use std::borrow::Cow;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rayon::prelude::*;

use super::exact::{self, Panel, Shape};
use super::fixed::Fixed;
use super::product::{self, PANEL};
use super::reserve::{filled, reserve};
use super::simd::{self, Group, Isa, Level, Task, LANES};
use crate::error::{Error, Result};
use crate::plan::parts::{longest_part, parts};
use crate::plan::{BufferId, Op};
use crate::quant::{self, Block, Integers, QuantType, SumsVisitor, COLUMNS, WORDS};

/// One weight matrix to be multiplied with the rows of `x`.
pub struct Product<'a> {
    /// `[n_out, n_in]` in its file encoding.
    pub weight: Cow<'a, [u8]>,
    pub ty: &'static QuantType,
    pub n_out: usize,
    /// What the sums are multiplied by.
    pub scale: Option<f32>,
    /// `[n_out]`.
    pub bias: Option<&'a [f32]>,
    pub out: BufferId,
}

/// The rows that products multiply.
#[derive(Clone, Copy)]
pub struct Rows<'a> {
    /// `[m, n_in]`.
    pub x: &'a [f32],
    pub n_in: usize,
    /// What the sums of each row are multiplied by: `[m]`.
    pub factors: Option<&'a [f32]>,
}

/// Jobs a thread gets, so that a late one is made up for.
const JOBS_PER_THREAD: usize = 4;

/// Weights a job should have at least: a few microseconds of work.
const MIN_JOB_WEIGHTS: usize = 1 << 14;

/// Panels of expanded weights that meet a tile of x while it is in the nearest cache.
const PANELS: usize = 4;

/// Rows of x up to which weights that are floats are expanded in registers, at once for all of them.
const FEW: usize = 4;

/// Mat-vecs at the front of `ops` that read the same x with the same norm, and none of which
/// overwrites it: they run in one parallel region, so that threads meet once.
pub fn group_len(ops: &[Op]) -> usize {
    let mut first = None;
    ops.iter()
        .take_while(|op| match op {
            Op::MatVec { x, norm, out, .. } => {
                *first.get_or_insert((x, norm)) == (x, norm) && out != x
            }
            _ => false,
        })
        .count()
}

/// Bytes that products of `m` rows of `n_in` with `n_out` outputs in all work on, where some of the
/// weights are `integers` and some are `floats`.
pub fn scratch_bytes(
    n_in: usize,
    n_out: usize,
    m: usize,
    threads: usize,
    (integers, floats): (bool, bool),
) -> u64 {
    let bytes = |n: usize, each: usize| (n as u64).saturating_mul(each as u64);
    let mut parts = vec![bytes(n_out.saturating_mul(m), size_of::<f32>())];
    let (groups, superblocks) = (product::groups(n_in), exact::superblocks(n_in));
    if integers {
        parts.push(bytes(superblocks.saturating_mul(m), size_of::<Fixed>()));
        let panels = longest_part(superblocks).saturating_mul(threads);
        parts.push(bytes(panels, size_of::<Panel>()));
        parts.push(bytes(m.saturating_mul(threads), size_of::<Group>()));
    }
    if floats && m > FEW {
        parts.push(bytes(groups.saturating_mul(m), size_of::<Group>()));
        let panels = panel_groups(n_in).saturating_mul(threads);
        parts.push(bytes(panels, size_of::<[Group; PANEL]>()));
    }
    parts.into_iter().fold(0, u64::saturating_add)
}

/// What a job expands weights into.
fn panel_groups(n_in: usize) -> usize {
    PANELS.saturating_mul(product::groups(n_in))
}

/// What most of that memory is for.
const ROWS: &str = "the products of the rows";

/// Memory that a step uses again and again.
#[derive(Default)]
pub struct Scratch {
    /// Each product's `[n_out, m]`, one after another.
    columns: Vec<f32>,
    /// `x` in tiles, for floats.
    x: Vec<Group>,
    /// `x` as block fixed point in tiles, for integers.
    fixed: Vec<Fixed>,
    workspaces: Workspaces,
}

impl Scratch {
    /// Computes all `products` of `rows`; [`Scratch::take`] hands them out. `absurd` makes the error
    /// of a row that has no block fixed point: then nothing is computed.
    ///
    /// # Errors
    /// [`crate::Error::Memory`], what `absurd` makes.
    pub fn run(
        &mut self,
        level: Level,
        products: &[Product<'_>],
        rows: Rows<'_>,
        absurd: impl Fn(usize) -> Error,
    ) -> Result<()> {
        let Rows { x, n_in, factors } = rows;
        let m = x.len() / n_in;
        let n_out: usize = products.iter().map(|p| p.n_out).sum();
        resized(&mut self.columns, n_out * m, 0.0, ROWS)?;
        let is_few = m <= FEW;
        let mut tiles = Vec::new();
        if !is_few && products.iter().any(|p| !p.ty.integers) {
            resized(&mut self.x, m * product::groups(n_in), [0.0; LANES], ROWS)?;
            tiles = pack(level, x, n_in, &mut self.x);
        }
        let mut fixed_tiles = Vec::new();
        if products.iter().any(|p| p.ty.integers) {
            resized(
                &mut self.fixed,
                m * exact::superblocks(n_in),
                Fixed::ZERO,
                ROWS,
            )?;
            let (packed, bad) = pack_fixed(level, x, n_in, &mut self.fixed);
            if let Some(row) = bad {
                return Err(absurd(row));
            }
            fixed_tiles = packed;
        }
        let jobs = rayon::current_num_threads() * JOBS_PER_THREAD;
        let rows_per_job = n_out.div_ceil(jobs).max(MIN_JOB_WEIGHTS.div_ceil(n_in * m));
        let mut work = Vec::new();
        let mut rest = self.columns.as_mut_slice();
        for product in products {
            let rows_per_job = match product.ty.integers {
                true => rows_per_job.next_multiple_of(LANES),
                false if is_few => rows_per_job,
                false => rows_per_job.next_multiple_of(PANEL * PANELS),
            };
            let mut first = 0;
            while first < product.n_out {
                let rows = rows_per_job.min(product.n_out - first);
                let (part, more) = rest.split_at_mut(rows * m);
                rest = more;
                work.push((product, first, part));
                first += rows;
            }
        }
        work.into_par_iter().try_for_each(|(product, first, part)| {
            let row_bytes = product.weight.len() / product.n_out;
            let rows = &product.weight[first * row_bytes..][..part.len() / m * row_bytes];
            let job = Job {
                level,
                rows,
                x,
                n_in,
                tiles: &tiles,
                fixed_tiles: &fixed_tiles,
                workspaces: &self.workspaces,
                out: part,
            };
            quant::dispatch_sums(product.ty, job)?;
            if let Some(factors) = factors {
                for out in part.chunks_exact_mut(m) {
                    out.iter_mut().zip(factors).for_each(|(y, f)| *y *= f);
                }
            }
            if let Some(scale) = product.scale {
                part.iter_mut().for_each(|y| *y *= scale);
            }
            if let Some(bias) = product.bias {
                for (bias, out) in bias[first..].iter().zip(part.chunks_exact_mut(m)) {
                    out.iter_mut().for_each(|y| *y += bias);
                }
            }
            Ok(())
        })
    }

    /// The outputs of one product, `[m, n_out]`; `from` is the number of outputs of those before.
    pub fn take(&self, from: usize, m: usize, out: &mut [f32]) {
        let n_out = out.len() / m;
        let columns = &self.columns[from * m..][..n_out * m];
        if m == 1 {
            return out.copy_from_slice(columns);
        }
        /// Rows written side by side: a cache line of each column.
        const ROWS: usize = 16;
        out.par_chunks_mut(ROWS * n_out)
            .enumerate()
            .for_each(|(block, out)| {
                let first = block * ROWS;
                for (i, column) in columns.chunks_exact(m).enumerate() {
                    for (y, value) in out.iter_mut().skip(i).step_by(n_out).zip(&column[first..]) {
                        *y = *value;
                    }
                }
            });
    }
}

/// Makes them `n`; `what` they are for.
fn resized<T: Clone>(values: &mut Vec<T>, n: usize, value: T, what: &str) -> Result<()> {
    if values.capacity() < n {
        // What they were is not wanted beside what they become.
        *values = Vec::new();
    }
    reserve(values, n, what)?;
    values.resize(n, value);
    Ok(())
}

/// Some rows of x side by side, `[groups][rows]` or `[superblocks][rows]`: how a tile of products
/// reads them.
struct Tile<'a, T> {
    first: usize,
    rows: usize,
    x: &'a [T],
}

/// Cuts `m` rows into tiles of nearly equal numbers of them, up to `most`, and `packed` into theirs.
fn cut<T>(m: usize, most: usize, packed: &mut [T]) -> Vec<(usize, usize, &mut [T])> {
    let n_tiles = m.div_ceil(most);
    let width = packed.len() / m;
    let mut rest = packed;
    let mut first = 0;
    let mut tiles = Vec::with_capacity(n_tiles);
    for i in 0..n_tiles {
        let rows = m / n_tiles + usize::from(i < m % n_tiles);
        let (part, more) = std::mem::take(&mut rest).split_at_mut(rows * width);
        rest = more;
        tiles.push((first, rows, part));
        first += rows;
    }
    tiles
}

/// Packs x in tiles, for floats.
fn pack<'a>(level: Level, x: &[f32], n_in: usize, packed: &'a mut [Group]) -> Vec<Tile<'a, Group>> {
    struct Columns;

    impl Task for Columns {
        type Out = usize;

        #[inline(always)]
        fn run<I: Isa>(self) -> usize {
            I::COLUMNS
        }
    }

    let fill = |(first, rows, part): (usize, usize, &'a mut [Group])| {
        let x = &x[first * n_in..][..rows * n_in];
        for (c, row) in x.chunks_exact(n_in).enumerate() {
            let mut values = row.chunks(LANES);
            for (out, values) in part.iter_mut().skip(c).step_by(rows).zip(&mut values) {
                out[..values.len()].copy_from_slice(values);
                out[values.len()..].fill(0.0);
            }
        }
        Tile {
            first,
            rows,
            x: part,
        }
    };
    let tiles = cut(x.len() / n_in, simd::run(level, Columns), packed);
    tiles.into_par_iter().map(fill).collect()
}

fn int_columns(level: Level) -> usize {
    struct Columns;

    impl Task for Columns {
        type Out = usize;

        #[inline(always)]
        fn run<I: Isa>(self) -> usize {
            I::INT_COLUMNS
        }
    }

    simd::run(level, Columns)
}

/// Packs x as block fixed point in tiles; also gives the first row that has none.
fn pack_fixed<'a>(
    level: Level,
    x: &[f32],
    n_in: usize,
    packed: &'a mut [Fixed],
) -> (Vec<Tile<'a, Fixed>>, Option<usize>) {
    /// The rows of a tile; gives the first bad one.
    struct Fill<'a> {
        x: &'a [f32],
        n_in: usize,
        rows: usize,
        out: &'a mut [Fixed],
    }

    impl Task for Fill<'_> {
        type Out = Option<usize>;

        #[inline(always)]
        fn run<I: Isa>(self) -> Option<usize> {
            let mut bad = None;
            for (c, row) in self.x.chunks_exact(self.n_in).enumerate() {
                let out = self.out.iter_mut().skip(c).step_by(self.rows);
                for (out, x) in out.zip(row.chunks(COLUMNS)) {
                    if !out.set::<I>(x) && bad.is_none() {
                        bad = Some(c);
                    }
                }
            }
            bad
        }
    }

    let fill = |(first, rows, out): (usize, usize, &'a mut [Fixed])| {
        let task = Fill {
            x: &x[first * n_in..][..rows * n_in],
            n_in,
            rows,
            out,
        };
        let bad = simd::run(level, task).map(|row| first + row);
        (
            Tile {
                first,
                rows,
                x: out,
            },
            bad,
        )
    };
    let tiles = cut(x.len() / n_in, int_columns(level), packed);
    let filled: Vec<_> = if tiles.len() == 1 {
        // Few rows: less work than waking a thread.
        tiles.into_iter().map(fill).collect()
    } else {
        tiles.into_par_iter().map(fill).collect()
    };
    let bad = filled.iter().find_map(|(_, bad)| *bad);
    (filled.into_iter().map(|(tile, _)| tile).collect(), bad)
}

/// Some rows of one weight matrix.
struct Job<'a> {
    level: Level,
    rows: &'a [u8],
    x: &'a [f32],
    n_in: usize,
    /// For floats; empty where x has at most [`FEW`] rows.
    tiles: &'a [Tile<'a, Group>],
    /// For integers.
    fixed_tiles: &'a [Tile<'a, Fixed>],
    workspaces: &'a Workspaces,
    /// `[rows, m]`.
    out: &'a mut [f32],
}

impl SumsVisitor for Job<'_> {
    type Out = Result<()>;

    fn integers<B: Integers>(mut self) -> Result<()> {
        let (level, n_in) = (self.level, self.n_in);
        let m = self.x.len() / n_in;
        let panels = longest_part(exact::superblocks(n_in));
        let mut workspace = self.workspaces.take(panels, m)?;
        let work = IntegerRows::<B> {
            job: &mut self,
            workspace: &mut workspace,
            block: std::marker::PhantomData,
        };
        simd::run(level, work);
        self.workspaces.put(workspace);
        Ok(())
    }

    fn floats<B: Block>(self) -> Result<()> {
        let level = self.level;
        if self.tiles.is_empty() {
            simd::run(level, Few::<B>(self, std::marker::PhantomData));
            return Ok(());
        }
        let groups = product::groups(self.n_in);
        let zeros = [[0.0; LANES]; PANEL];
        let mut panels = filled(panel_groups(self.n_in), zeros, "the weights expanded")?;
        let row_bytes = self.n_in / B::ELEMS * B::BYTES;
        let m = self.x.len() / self.n_in;
        let blocks = self
            .rows
            .chunks(PANELS * PANEL * row_bytes)
            .zip(self.out.chunks_mut(PANELS * PANEL * m));
        for (rows, out) in blocks {
            for (rows, panel) in rows
                .chunks(PANEL * row_bytes)
                .zip(panels.chunks_exact_mut(groups))
            {
                let expand = Expand::<B> {
                    rows,
                    n_in: self.n_in,
                    panel,
                    block: std::marker::PhantomData,
                };
                simd::run(level, expand);
            }
            for tile in self.tiles {
                let sums = Sums {
                    panels: &panels,
                    tile,
                    m,
                    out,
                };
                simd::run(level, sums);
            }
        }
        Ok(())
    }
}

/// What a job with weights that are integers works on.
#[derive(Default)]
struct Workspace {
    /// The superblocks of a part.
    panels: Vec<Panel>,
    /// One for each row of x.
    totals: Vec<Group>,
}

/// Those that no job has: as many as worked at once, kept from step to step.
#[derive(Default)]
struct Workspaces(Mutex<Vec<Workspace>>);

impl Workspaces {
    fn idle(&self) -> MutexGuard<'_, Vec<Workspace>> {
        // A list is whole whatever panicked.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One of at least so many panels, for `m` rows of x.
    fn take(&self, panels: usize, m: usize) -> Result<Workspace> {
        let idle = self.idle().pop();
        let mut workspace = idle.unwrap_or_default();
        if workspace.panels.len() < panels {
            resized(
                &mut workspace.panels,
                panels,
                Panel::ZERO,
                "the weights taken apart",
            )?;
        }
        resized(
            &mut workspace.totals,
            m,
            [0.0; LANES],
            "the sums of the rows",
        )?;
        Ok(workspace)
    }

    fn put(&self, workspace: Workspace) {
        self.idle().push(workspace);
    }
}

/// All of a job: its rows, as many at once as there are lanes.
struct IntegerRows<'a, 'b, B> {
    job: &'a mut Job<'b>,
    workspace: &'a mut Workspace,
    block: std::marker::PhantomData<B>,
}

impl<B: Integers> Task for IntegerRows<'_, '_, B> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Self { job, workspace, .. } = self;
        let Workspace { panels, totals } = workspace;
        let (n_in, m) = (job.n_in, job.x.len() / job.n_in);
        let row_bytes = n_in / B::ELEMS * B::BYTES;
        let superblocks = exact::superblocks(n_in);
        let mut words = [I::no_words(); WORDS];
        let mut rest = job.rows;
        for out in job.out.chunks_mut(LANES * m) {
            let n = out.len() / m;
            for (i, part) in parts(superblocks).enumerate() {
                let panels = &mut panels[..part.len()];
                for (s, panel) in part.clone().zip(&mut *panels) {
                    panel.take::<I, B>(&mut words, (rest, n), n_in, s);
                }
                for tile in job.fixed_tiles {
                    let sums = IntSums {
                        shape: Shape::of::<B>(),
                        panels,
                        x: &tile.x[part.start * tile.rows..][..part.len() * tile.rows],
                        is_first: i == 0,
                        totals: &mut totals[tile.first..][..tile.rows],
                    };
                    simd::run(job.level, sums);
                }
            }
            rest = &rest[n * row_bytes..];
            if let [total] = &totals[..] {
                out.copy_from_slice(&total[..n]);
                continue;
            }
            for (r, out) in out.chunks_exact_mut(m).enumerate() {
                for (out, total) in out.iter_mut().zip(&*totals) {
                    *out = total[r];
                }
            }
        }
    }
}

/// One part of the sums of a panel with one tile; no type of weights any more.
struct IntSums<'a> {
    shape: Shape,
    panels: &'a [Panel],
    /// `[superblocks][rows]`.
    x: &'a [Fixed],
    is_first: bool,
    /// `[rows]`.
    totals: &'a mut [Group],
}

impl Task for IntSums<'_> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        match self.totals.len() {
            1 => self.columns::<I, 1>(),
            2 => self.columns::<I, 2>(),
            3 => self.columns::<I, 3>(),
            4 => self.columns::<I, 4>(),
            5 => self.columns::<I, 5>(),
            6 => self.columns::<I, 6>(),
            7 => self.columns::<I, 7>(),
            _ => self.columns::<I, 8>(),
        }
    }
}

impl IntSums<'_> {
    #[inline(always)]
    fn columns<I: Isa, const C: usize>(self) {
        if let Some(totals) = self.totals.first_chunk_mut() {
            let x = self.x.as_chunks::<C>().0;
            let Self {
                shape,
                panels,
                is_first,
                ..
            } = self;
            match shape.quads {
                4 => exact::tile::<I, 4, C>(shape, panels, x, is_first, totals),
                _ => exact::tile::<I, 8, C>(shape, panels, x, is_first, totals),
            }
        }
    }
}

struct Few<'a, B>(Job<'a>, std::marker::PhantomData<B>);

impl<B: Block> Task for Few<'_, B> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        let Job {
            rows, x, n_in, out, ..
        } = self.0;
        let row = |i: usize| &x[i * n_in..][..n_in];
        match x.len() / n_in {
            1 => product::matvec::<I, B, 1>(rows, [row(0)], out.as_chunks_mut().0),
            2 => product::matvec::<I, B, 2>(rows, [row(0), row(1)], out.as_chunks_mut().0),
            3 => {
                let x = [row(0), row(1), row(2)];
                product::matvec::<I, B, 3>(rows, x, out.as_chunks_mut().0);
            }
            _ => {
                let x = [row(0), row(1), row(2), row(3)];
                product::matvec::<I, B, FEW>(rows, x, out.as_chunks_mut().0);
            }
        }
    }
}

struct Expand<'a, B> {
    rows: &'a [u8],
    n_in: usize,
    panel: &'a mut [[Group; PANEL]],
    block: std::marker::PhantomData<B>,
}

impl<B: Block> Task for Expand<'_, B> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        product::expand_panel::<I, B>(self.rows, self.n_in, self.panel);
    }
}

/// The sums of some panels with one tile; no type of weights any more.
struct Sums<'a, 'b> {
    panels: &'a [[Group; PANEL]],
    tile: &'a Tile<'b, Group>,
    m: usize,
    /// `[up to PANELS * PANEL, m]`.
    out: &'a mut [f32],
}

impl Task for Sums<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        match self.tile.rows {
            1 => self.columns::<I, 1>(),
            2 => self.columns::<I, 2>(),
            3 => self.columns::<I, 3>(),
            4 => self.columns::<I, 4>(),
            5 => self.columns::<I, 5>(),
            _ => self.columns::<I, 6>(),
        }
    }
}

impl Sums<'_, '_> {
    #[inline(always)]
    fn columns<I: Isa, const C: usize>(self) {
        let (x, _) = self.tile.x.as_chunks::<C>();
        for (panel, out) in self
            .panels
            .chunks_exact(x.len())
            .zip(self.out.chunks_mut(PANEL * self.m))
        {
            let sums = product::tile::<I, C>(panel, x);
            for (out, sums) in out.chunks_exact_mut(self.m).zip(sums) {
                out[self.tile.first..][..C].copy_from_slice(&sums);
            }
        }
    }
}
