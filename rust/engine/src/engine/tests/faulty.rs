//! A real backend that goes wrong when it is told to, and has an eye on who reads and writes what.
use super::*;
use crate::backend::TextPart;

/// What goes wrong, and when.
#[derive(Clone)]
pub struct Faults {
    /// Panic in decode step number ...
    pub panic_at: Option<usize>,
    /// The whole step fails in decode step number ...
    pub error_at: Option<usize>,
    /// Of this step, the first event's sequence fails.
    pub fail_one_at: Option<usize>,
    /// Whether steps take no drafts.
    pub drops_drafts: bool,
    /// Whether there are passes over prompts that are a step too.
    pub steps_beside: bool,
    /// Every step sleeps so long.
    pub delay: Duration,
    /// Every row of a prompt sleeps so long.
    pub row_delay: Duration,
    /// What was done, in order.
    pub log: Arc<Mutex<Vec<Did>>>,
    /// Of every pass over prompts how many it was over, and whether it was a step too.
    pub passes: Arc<Mutex<Vec<(usize, bool)>>>,
    /// The first slice of logits waits until this is open.
    pub gate: Option<Arc<Barrier>>,
    /// Rows of logits that were computed before the first prompt was fed.
    pub rows_before: Arc<Mutex<(usize, bool)>>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            panic_at: None,
            error_at: None,
            fail_one_at: None,
            drops_drafts: false,
            steps_beside: true,
            delay: Duration::ZERO,
            row_delay: Duration::ZERO,
            log: Arc::default(),
            passes: Arc::default(),
            gate: None,
            rows_before: Arc::default(),
        }
    }
}

/// What a backend was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Did {
    /// Rows of the prompt that begins with this token.
    Fed(u32, usize),
    Step,
}

/// The real backend, with faults, and an eye on who reads and writes the pages.
pub struct Faulty {
    pub inner: CpuBackend,
    pub faults: Faults,
    pub steps: usize,
    /// By slot its pages, and the tokens of its prompt.
    /// By slot, a kind each.
    pub tables: [HashMap<usize, Vec<u32>>; 2],
    pub prompts: HashMap<usize, usize>,
    /// By slot the first token of its prompt.
    pub firsts: HashMap<usize, u32>,
}

impl Faulty {
    /// Nobody else reads what is written.
    fn writes(&self, slot: usize, position: usize) {
        for tables in self.tables.iter().filter(|tables| !tables.is_empty()) {
            let page = tables[&slot][position / crate::backend::PAGE_TOKENS];
            assert!(page != 0, "position {position} of slot {slot} has no page");
            for (other, pages) in tables {
                let reads = *other != slot && pages.contains(&page);
                assert!(!reads, "slot {slot} writes page {page} of slot {other}");
            }
        }
    }

    fn before_step(&mut self) -> Result<()> {
        self.steps += 1;
        std::thread::sleep(self.faults.delay);
        self.faults.log.lock().unwrap().push(Did::Step);
        assert!(self.faults.panic_at != Some(self.steps), "a planted panic");
        match self.faults.error_at == Some(self.steps) {
            true => Err(Error::Internal("a planted error".into())),
            false => Ok(()),
        }
    }
}

impl Backend for Faulty {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn map_pages(&mut self, kind: Kind, slot: usize, first: usize, pages: &[u32]) -> Result<()> {
        let table = self.tables[kind as usize].entry(slot).or_default();
        table.resize(table.len().max(first + pages.len()), 0);
        table[first..first + pages.len()].copy_from_slice(pages);
        self.inner.map_pages(kind, slot, first, pages)
    }

    fn copy_page(&mut self, kind: Kind, from: u32, to: u32) -> Result<()> {
        let tables = self.tables[kind as usize].values();
        let readers = tables.filter(|pages| pages.contains(&to));
        assert_eq!(readers.count(), 1, "page {to} is copied to");
        self.inner.copy_page(kind, from, to)
    }

    fn storage(&mut self) -> Option<&mut dyn crate::backend::Storage> {
        self.inner.storage()
    }

    fn start(&mut self, slot: usize, request: &SlotRequest) -> Result<()> {
        self.prompts.insert(slot, request.prompt.len());
        self.firsts.insert(slot, request.prompt[0]);
        self.inner.start(slot, request)
    }

    fn allow(&mut self, slot: usize, rows: Vec<Allowed>) -> Result<()> {
        self.inner.allow(slot, rows)
    }

    fn feed(
        &mut self,
        parts: &[crate::backend::Part<'_>],
        step: bool,
    ) -> Result<Vec<(usize, Error)>> {
        let rows: usize = parts.iter().map(|part| part.tokens.len()).sum();
        std::thread::sleep(self.faults.delay + self.faults.row_delay * rows as u32);
        for part in parts {
            let did = Did::Fed(self.firsts[&part.slot], part.tokens.len());
            self.faults.log.lock().unwrap().push(did);
            let end = part.start + part.tokens.len();
            (part.start..end).for_each(|position| self.writes(part.slot, position));
        }
        self.faults.rows_before.lock().unwrap().1 = true;
        self.faults.passes.lock().unwrap().push((parts.len(), step));
        if step {
            self.before_step()?;
        }
        self.inner.feed(parts, step)
    }

    fn steps_beside_prompts(&self, sequences: usize) -> bool {
        self.faults.steps_beside && self.inner.steps_beside_prompts(sequences)
    }

    fn decode(&mut self) -> Result<()> {
        self.before_step()?;
        self.inner.decode()
    }

    fn awaits_draw(&self) -> bool {
        self.inner.awaits_draw()
    }

    fn draw(&mut self) -> Result<()> {
        self.inner.draw()
    }

    fn decode_drafted(&mut self, drafts: &[Draft]) -> Result<()> {
        self.before_step()?;
        match self.faults.drops_drafts {
            true => self.inner.decode_drafted(&[]),
            false => self.inner.decode_drafted(drafts),
        }
    }

    fn row_cost(&self) -> f32 {
        self.inner.row_cost()
    }

    fn is_settled(&self) -> bool {
        self.inner.is_settled()
    }

    fn drain(&mut self, wait: bool) -> Result<Vec<Event>> {
        let mut events = self.inner.drain(wait)?;
        for event in events.iter().filter(|e| e.index > 0) {
            // It fed the token drawn before.
            self.writes(event.slot, self.prompts[&event.slot] + event.index - 1);
        }
        if self.faults.fail_one_at == Some(self.steps) {
            if let Some(event) = events.first_mut() {
                event.finish = Some(Finish::Failed(Error::Internal("one fails".into())));
                self.faults.fail_one_at = None;
            }
        }
        Ok(events)
    }

    fn may_queue(&self) -> bool {
        self.inner.may_queue()
    }

    fn set_paused(&mut self, slot: usize, paused: bool) {
        self.inner.set_paused(slot, paused);
    }

    fn release(&mut self, slot: usize) -> Result<()> {
        self.inner.release(slot)
    }

    fn saturated(&self, slot: usize) -> bool {
        self.inner.saturated(slot)
    }

    fn sampling_time(&self) -> Duration {
        self.inner.sampling_time()
    }

    fn logits(
        &mut self,
        slot: usize,
        ids: &[u32],
        at: usize,
        path: LogitsPath,
    ) -> Result<Vec<f32>> {
        if let Some(gate) = self.faults.gate.take() {
            gate.wait();
        }
        let (rows, fed) = &mut *self.faults.rows_before.lock().unwrap();
        if !*fed {
            *rows += ids.len();
        }
        self.inner.logits(slot, ids, at, path)
    }

    fn hidden(&mut self, parts: &[TextPart<'_>]) -> Result<Vec<Result<Vec<f32>>>> {
        self.inner.hidden(parts)
    }
}
