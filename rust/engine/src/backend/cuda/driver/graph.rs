//! Capture and replay: a list of launches recorded once as one CUDA graph.

use std::ffi::CString;
use std::path::Path;
use std::sync::Arc;

use cudarc::driver::sys;

use super::check::check;
use super::context::Context;
use super::launch::{run_all, Launch};
use super::stream::Stream;
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

// SAFETY: graph handles may be used from any thread that has the context current, one at a time. They are
// not synchronized: no two threads may have one.
unsafe impl Send for Graph {}

/// What a captured graph consists of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
    // SAFETY: the handle is live as long as the stream.
    check("cuStreamBeginCapture_v2", unsafe {
        sys::cuStreamBeginCapture_v2(stream.handle, mode)
    })?;
    let recorded = run_all(launches, stream);
    let mut graph = std::ptr::null_mut();
    // SAFETY: the handle is live; the driver writes one handle, here.
    let ended = check("cuStreamEndCapture", unsafe {
        sys::cuStreamEndCapture(stream.handle, &mut graph)
    });
    match recorded.and(ended) {
        Ok(()) => Ok(graph),
        Err(e) => {
            if !graph.is_null() {
                // SAFETY: destroys what the capture gave, once.
                let _ = check("cuGraphDestroy", unsafe { sys::cuGraphDestroy(graph) });
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
        // SAFETY: the graph is live; the driver writes one handle, here.
        check("cuGraphInstantiateWithFlags", unsafe {
            sys::cuGraphInstantiateWithFlags(&mut self.exec, self.graph, 0)
        })?;
        // SAFETY: both handles are live.
        check("cuGraphUpload", unsafe {
            sys::cuGraphUpload(self.exec, stream.handle)
        })
    }

    /// Makes this the graph of other launches: in place where they are as many of the same kinds
    /// and order, which leaves the instance where it is, else by a new instance. Says whether it
    /// was in place. Replays that are queued still run what they were queued with.
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
        // SAFETY: both graphs are live; the driver writes one result, here.
        let updated = check("cuGraphExecUpdate_v2", unsafe {
            sys::cuGraphExecUpdate_v2(self.exec, next.graph, &mut refused)
        });
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
        // SAFETY: both handles are live; the launches keep modules alive, whatever owns the graph
        // its buffers.
        check("cuGraphLaunch", unsafe {
            sys::cuGraphLaunch(self.exec, stream.handle)
        })
    }

    /// The launches that were captured.
    pub fn launches(&self) -> &[Launch] {
        &self.launches
    }

    /// Counts nodes and edges.
    pub fn shape(&self) -> Result<GraphShape> {
        let (mut nodes, mut edges) = (0, 0);
        // SAFETY: the graph is live; without an array the driver writes only their number.
        check("cuGraphGetNodes", unsafe {
            sys::cuGraphGetNodes(self.graph, std::ptr::null_mut(), &mut nodes)
        })?;
        let null: sys::CUgraphNode = std::ptr::null_mut();
        // SAFETY: the graph is live; each array has room for as many edges as are asked for.
        check("cuGraphGetEdges_v2", unsafe {
            sys::cuGraphGetEdges_v2(
                self.graph,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                &mut edges,
            )
        })?;
        let (mut from, mut to) = (vec![null; edges], vec![null; edges]);
        // SAFETY: all-zero edge data is a valid value.
        let mut data: Vec<sys::CUgraphEdgeData> = vec![unsafe { std::mem::zeroed() }; edges];
        // The driver refuses to give none.
        if edges > 0 {
            // SAFETY: the graph is live; each array has room for as many edges as are asked for.
            check("cuGraphGetEdges_v2", unsafe {
                sys::cuGraphGetEdges_v2(
                    self.graph,
                    from.as_mut_ptr(),
                    to.as_mut_ptr(),
                    data.as_mut_ptr(),
                    &mut edges,
                )
            })?;
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
        // SAFETY: the graph is live, the path ends with a zero byte.
        check("cuGraphDebugDotPrint", unsafe {
            sys::cuGraphDebugDotPrint(self.graph, c_path.as_ptr(), verbose)
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if !self.context.takes_back() {
            return;
        }
        if !self.exec.is_null() {
            // SAFETY: destroys what `instantiate` gave, once.
            let _ = check("cuGraphExecDestroy", unsafe {
                sys::cuGraphExecDestroy(self.exec)
            });
        }
        if !self.graph.is_null() {
            // SAFETY: destroys what the capture gave, once.
            let _ = check("cuGraphDestroy", unsafe { sys::cuGraphDestroy(self.graph) });
        }
    }
}
