//! Capture and replay: a list of launches recorded once as one CUDA graph.

use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;

use cudarc::driver::sys;

use super::device::{driver, Context, Stream};
use super::launch::{run_all, Launch};
use crate::error::{Error, Result};

/// A captured, instantiated graph. It keeps the launches, hence their modules, alive: the driver's
/// graph does not.
#[derive(Debug)]
pub struct Graph {
    context: Arc<Context>,
    graph: sys::CUgraph,
    exec: sys::CUgraphExec,
    launches: Vec<Launch>,
}

// SAFETY: graph handles may be used from any thread that has the context current, one at a time;
// launching takes `&self`, and the driver serializes launches of one exec.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

/// What a captured graph consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct GraphShape {
    pub nodes: usize,
    pub edges: usize,
    /// Edges across which the successor may start early.
    pub programmatic_edges: usize,
}

/// Ends a capture also where it failed, or its stream stays unusable.
fn record(stream: &Stream, launches: &[Launch]) -> Result<sys::CUgraph> {
    stream.context.bind()?;
    // Thread-local: another thread's allocation must not break this capture.
    let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    driver!(cuStreamBeginCapture_v2(stream.handle, mode))?;
    let recorded = run_all(launches, stream);
    let mut graph = std::ptr::null_mut();
    let ended = driver!(cuStreamEndCapture(stream.handle, &mut graph));
    match recorded.and(ended) {
        Ok(()) => Ok(graph),
        Err(e) => {
            if !graph.is_null() {
                let _ = driver!(cuGraphDestroy(graph));
            }
            Err(e)
        }
    }
}

impl Graph {
    /// Records `launches` on `stream`, which executes none of them, and instantiates the graph.
    ///
    /// # Errors
    /// [`Error::Device`] says which call failed; the stream is usable afterwards.
    pub fn capture(stream: &Stream, launches: &[Launch]) -> Result<Self> {
        let mut captured = Self {
            context: stream.context.clone(),
            graph: record(stream, launches)?,
            exec: std::ptr::null_mut(),
            launches: launches.to_vec(),
        };
        captured.check_nodes()?;
        captured.instantiate(stream)?;
        Ok(captured)
    }

    /// Every launch is a node, or the replay would miss a kernel.
    fn check_nodes(&self) -> Result<()> {
        let (launches, nodes) = (self.launches.len(), self.shape()?.nodes);
        if launches == nodes {
            return Ok(());
        }
        Err(Error::Internal(format!(
            "{launches} launches were captured as {nodes} nodes"
        )))
    }

    fn instantiate(&mut self, stream: &Stream) -> Result<()> {
        driver!(cuGraphInstantiateWithFlags(&mut self.exec, self.graph, 0))?;
        driver!(cuGraphUpload(self.exec, stream.handle))
    }

    /// Makes this the graph of other launches: in place where they are as many of the same kinds
    /// and order, which leaves the instance where it is, else by a new instance. Says whether it was
    /// in place. Replays that are queued still run what they were queued with.
    ///
    /// # Errors
    /// As [`Graph::capture`]; the graph is then what it was before.
    pub fn update(&mut self, stream: &Stream, launches: &[Launch]) -> Result<bool> {
        let mut next = Self {
            context: self.context.clone(),
            graph: record(stream, launches)?,
            exec: std::ptr::null_mut(),
            launches: launches.to_vec(),
        };
        next.check_nodes()?;
        // SAFETY: all-zero result information is a valid value.
        let mut refused: sys::CUgraphExecUpdateResultInfo = unsafe { std::mem::zeroed() };
        let updated = driver!(cuGraphExecUpdate_v2(self.exec, next.graph, &mut refused));
        use sys::CUgraphExecUpdateResult_enum as r;
        match updated {
            Ok(()) => {
                // The instance is the same; what it was recorded from, and keeps alive, is not.
                std::mem::swap(&mut next.exec, &mut self.exec);
                stream.synchronize()?;
                *self = next;
                Ok(true)
            }
            // Not the driver's failure but another shape: it has changed nothing.
            Err(_)
                if refused.result != r::CU_GRAPH_EXEC_UPDATE_ERROR
                    && refused.result != r::CU_GRAPH_EXEC_UPDATE_SUCCESS =>
            {
                next.instantiate(stream)?;
                stream.synchronize()?;
                *self = next;
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    /// Queues one replay.
    pub fn replay(&self, stream: &Stream) -> Result<()> {
        self.context.bind()?;
        driver!(cuGraphLaunch(self.exec, stream.handle))
    }

    /// The launches that were captured.
    pub fn launches(&self) -> &[Launch] {
        &self.launches
    }

    /// Counts nodes and edges.
    pub fn shape(&self) -> Result<GraphShape> {
        let (mut nodes, mut edges) = (0, 0);
        driver!(cuGraphGetNodes(
            self.graph,
            std::ptr::null_mut(),
            &mut nodes
        ))?;
        let null: sys::CUgraphNode = std::ptr::null_mut();
        driver!(cuGraphGetEdges_v2(
            self.graph,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            &mut edges
        ))?;
        let (mut from, mut to) = (vec![null; edges], vec![null; edges]);
        // SAFETY: all-zero edge data is a valid value.
        let mut data: Vec<sys::CUgraphEdgeData> = vec![unsafe { std::mem::zeroed() }; edges];
        // The driver refuses to give none.
        if edges > 0 {
            driver!(cuGraphGetEdges_v2(
                self.graph,
                from.as_mut_ptr(),
                to.as_mut_ptr(),
                data.as_mut_ptr(),
                &mut edges
            ))?;
        }
        let programmatic = sys::CUgraphDependencyType_enum::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
        let programmatic_edges = data
            .iter()
            .filter(|e| e.type_ == programmatic as u8)
            .count();
        Ok(GraphShape {
            nodes,
            edges,
            programmatic_edges,
        })
    }

    /// Writes the graph in Graphviz' DOT language.
    pub fn write_dot(&self, path: &Path) -> Result<()> {
        let text = path.display().to_string();
        let c_path = CString::new(text.clone())
            .map_err(|_| Error::Internal(format!("the path {text:?}")))?;
        let verbose = sys::CUgraphDebugDot_flags_enum::CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE as u32;
        driver!(cuGraphDebugDotPrint(self.graph, c_path.as_ptr(), verbose))
    }
}

/// A list of launches cut at its attentions, whose grids may depend on the lengths of sequences:
/// graphs between them, and they launched by themselves.
#[derive(Debug)]
pub struct Pieces(Vec<Piece>);

#[derive(Debug)]
enum Piece {
    Graph(Graph),
    Launch(Launch),
}

impl Pieces {
    /// Captures `launches`, piece by piece.
    ///
    /// # Errors
    /// As [`Graph::capture`].
    pub fn capture(stream: &Stream, launches: &[Launch]) -> Result<Self> {
        let mut pieces = Vec::new();
        for run in launches.chunk_by(|a, b| !a.is_attention() && !b.is_attention()) {
            let mut run = run.to_vec();
            if let Some(first) = run.first_mut() {
                // It follows another piece, not a kernel: it waits for all of that.
                first.pdl = false;
            }
            match run.pop() {
                Some(attention) if attention.is_attention() => {
                    pieces.push(Piece::Launch(attention));
                }
                Some(last) => {
                    run.push(last);
                    pieces.push(Piece::Graph(Graph::capture(stream, &run)?));
                }
                None => {}
            }
        }
        Ok(Self(pieces))
    }

    /// Queues every piece.
    pub fn run(&self, stream: &Stream) -> Result<()> {
        stream.context.bind()?;
        self.0.iter().try_for_each(|piece| match piece {
            Piece::Graph(graph) => graph.replay(stream),
            Piece::Launch(launch) => launch.run(stream),
        })
    }

    /// What it launches, in order.
    pub fn launches(&self) -> Vec<Launch> {
        let launches = self.0.iter().flat_map(|piece| match piece {
            Piece::Graph(graph) => graph.launches(),
            Piece::Launch(launch) => std::slice::from_ref(launch),
        });
        launches.cloned().collect()
    }

    /// The graphs.
    pub fn graphs(&self) -> impl Iterator<Item = &Graph> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Graph(graph) => Some(graph),
            Piece::Launch(_) => None,
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if !self.context.takes_back() {
            return;
        }
        if !self.exec.is_null() {
            let _ = driver!(cuGraphExecDestroy(self.exec));
        }
        if !self.graph.is_null() {
            let _ = driver!(cuGraphDestroy(self.graph));
        }
    }
}
