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

impl Graph {
    /// Records `launches` on `stream`, which executes none of them, and instantiates the graph.
    ///
    /// # Errors
    /// [`Error::Device`] says which call failed; the stream is usable afterwards.
    pub fn capture(stream: &Stream, launches: &[Launch]) -> Result<Self> {
        let context = stream.context.clone();
        context.bind()?;
        // Thread-local: another thread's allocation must not break this capture.
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        driver!(cuStreamBeginCapture_v2(stream.handle, mode))?;
        let recorded = run_all(launches, stream);
        let mut graph = std::ptr::null_mut();
        // Ends the capture also where it failed, or the stream stays unusable.
        let ended = driver!(cuStreamEndCapture(stream.handle, &mut graph));
        let launches = launches.to_vec();
        let mut captured = Self {
            context,
            graph,
            exec: std::ptr::null_mut(),
            launches,
        };
        recorded?;
        ended?;
        let shape = captured.shape()?;
        if shape.nodes != captured.launches.len() {
            return Err(Error::Internal(format!(
                "{} launches were captured as {} nodes",
                captured.launches.len(),
                shape.nodes
            )));
        }
        driver!(cuGraphInstantiateWithFlags(
            &mut captured.exec,
            captured.graph,
            0
        ))?;
        driver!(cuGraphUpload(captured.exec, stream.handle))?;
        Ok(captured)
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
        driver!(cuGraphGetEdges_v2(
            self.graph,
            from.as_mut_ptr(),
            to.as_mut_ptr(),
            data.as_mut_ptr(),
            &mut edges
        ))?;
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

impl Drop for Graph {
    fn drop(&mut self) {
        if self.context.bind().is_err() {
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
