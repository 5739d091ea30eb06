//! A list of launches, ready to run: as it is, as one graph, or in pieces.

use crate::backend::cuda::driver::graph::Graph;
use crate::backend::cuda::driver::launch::{run_all, Launch};
use crate::backend::cuda::driver::spec::Kind;
use crate::backend::cuda::driver::stream::Stream;
use crate::error::Result;

/// How a list is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Way {
    /// As one graph.
    Full,
    /// As graphs between attentions.
    Piecewise,
    /// Launch by launch.
    Eager,
}

impl Way {
    /// Its public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Piecewise => "piecewise",
            Self::Eager => "eager",
        }
    }
}

/// A list of launches, ready to run.
#[derive(Debug)]
pub enum Ready {
    List(Vec<Launch>),
    Graph(Graph),
    /// Cut at its attentions, whose grids may depend on the lengths of sequences.
    Pieces(Vec<Piece>),
}

/// A piece of a list.
#[derive(Debug)]
pub enum Piece {
    Graph(Graph),
    Launch(Launch),
}

impl Piece {
    fn graph(&self) -> Option<&Graph> {
        match self {
            Self::Graph(graph) => Some(graph),
            Self::Launch(_) => None,
        }
    }
}

/// Captures `launches` but for their attentions.
fn pieces(launches: &[Launch], stream: &Stream) -> Result<Vec<Piece>> {
    let is_attention = |launch: &Launch| launch.spec.kind == Kind::Attention;
    let runs = launches.chunk_by(|a, b| !is_attention(a) && !is_attention(b));
    let piece = |run: &[Launch]| {
        let mut run = run.to_vec();
        if let Some(first) = run.first_mut() {
            // It follows another piece, not a kernel: it waits for all of that.
            first.pdl = false;
        }
        Ok(match run.pop() {
            Some(attention) if is_attention(&attention) => Piece::Launch(attention),
            last => {
                run.extend(last);
                Piece::Graph(Graph::capture(stream, &run)?)
            }
        })
    };
    runs.map(piece).collect()
}

impl Ready {
    /// Makes `launches` ready.
    ///
    /// # Errors
    /// As [`Graph::capture`].
    pub fn new(way: Way, launches: Vec<Launch>, stream: &Stream) -> Result<Self> {
        Ok(match way {
            Way::Full => Self::Graph(Graph::capture(stream, &launches)?),
            Way::Piecewise => Self::Pieces(pieces(&launches, stream)?),
            Way::Eager => Self::List(launches),
        })
    }

    /// Queues it.
    ///
    /// # Errors
    /// [`crate::Error::Device`].
    pub fn run(&self, stream: &Stream) -> Result<()> {
        match self {
            Self::List(launches) => run_all(launches, stream),
            Self::Graph(graph) => graph.replay(stream),
            Self::Pieces(pieces) => {
                stream.context.bind()?;
                pieces.iter().try_for_each(|piece| match piece {
                    Piece::Graph(graph) => graph.replay(stream),
                    Piece::Launch(launch) => launch.run(stream),
                })
            }
        }
    }

    /// What it launches, in order.
    pub fn launches(&self) -> Vec<Launch> {
        match self {
            Self::List(launches) => launches.clone(),
            Self::Graph(graph) => graph.launches().to_vec(),
            Self::Pieces(pieces) => {
                let launches = pieces.iter().flat_map(|piece| match piece {
                    Piece::Graph(graph) => graph.launches(),
                    Piece::Launch(launch) => std::slice::from_ref(launch),
                });
                launches.cloned().collect()
            }
        }
    }

    /// The graphs in it.
    pub fn graphs(&self) -> Vec<&Graph> {
        match self {
            Self::List(_) => Vec::new(),
            Self::Graph(graph) => vec![graph],
            Self::Pieces(pieces) => pieces.iter().filter_map(Piece::graph).collect(),
        }
    }
}
