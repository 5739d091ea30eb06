//! A card's context, which everything that is allocated on it needs.

use std::ffi::c_int;
use std::sync::Arc;

use cudarc::driver::sys;

use super::check::{check, device_error};
use super::clusters::most_clusters;
use super::device::info;
use super::info::DeviceInfo;
use super::ledger::Ledger;
use crate::error::{Error, Result};

/// A card's primary context, retained; or a card that is only described, where buffers have sizes
/// and addresses but no bytes: what a model would take there, and the kernels it would run, are
/// those of the real one.
#[derive(Debug)]
pub struct Context {
    pub info: DeviceInfo,
    card: Option<Card>,
    pub(super) ledger: Ledger,
}

#[derive(Debug)]
struct Card {
    device: sys::CUdevice,
    handle: sys::CUcontext,
}

// SAFETY: a context handle may be used from any thread that makes it current first, which every
// call here does.
unsafe impl Send for Context {}
// SAFETY: as above; the driver locks inside.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of card `ordinal`.
    ///
    /// # Errors
    /// As [`info`].
    pub fn new(ordinal: usize) -> Result<Arc<Self>> {
        let info = info(ordinal)?;
        if info.compute < (7, 5) {
            return Err(device_error(
                format!("cuda:{ordinal} ({})", info.name),
                format!(
                    "its compute capability is {}.{}",
                    info.compute.0, info.compute.1
                ),
                "7.5 (Turing) or newer is needed; use device=\"cpu\"",
            ));
        }
        let mut device = 0;
        // SAFETY: the driver writes one handle, here; it checks the number.
        check("cuDeviceGet", unsafe {
            sys::cuDeviceGet(&mut device, ordinal as c_int)
        })?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the driver writes one handle, here; the device came from it.
        check("cuDevicePrimaryCtxRetain", unsafe {
            sys::cuDevicePrimaryCtxRetain(&mut handle, device)
        })?;
        let mut context = Self {
            info,
            card: Some(Card { device, handle }),
            ledger: Ledger::default(),
        };
        context.bind()?;
        if context.info.clusters > 0 {
            if let Some(most) = most_clusters(&context.info)? {
                context.info.clusters = most;
            }
        }
        Ok(Arc::new(context))
    }

    /// A card that is only described.
    pub fn described(info: DeviceInfo) -> Arc<Self> {
        Arc::new(Self {
            info,
            card: None,
            ledger: Ledger::default(),
        })
    }

    /// Whether no card is behind it.
    pub fn is_described(&self) -> bool {
        self.card.is_none()
    }

    /// Makes this context current on the calling thread.
    ///
    /// # Errors
    /// [`Error::Internal`] for a card that is only described.
    pub fn bind(&self) -> Result<()> {
        match &self.card {
            // SAFETY: the handle is retained as long as `self` lives.
            Some(card) => check("cuCtxSetCurrent", unsafe {
                sys::cuCtxSetCurrent(card.handle)
            }),
            None => Err(Error::Internal("work for a card that is not there".into())),
        }
    }

    /// Lets kernels of this card use the memory of another.
    ///
    /// # Errors
    /// [`Error::Device`] where the two cannot reach each other.
    pub fn reach(&self, other: &Context) -> Result<()> {
        let (Some(own), Some(card)) = (&self.card, &other.card) else {
            return Ok(());
        };
        let mut can = 0;
        // SAFETY: the driver writes one number, here; the devices came from it.
        check("cuDeviceCanAccessPeer", unsafe {
            sys::cuDeviceCanAccessPeer(&mut can, own.device, card.device)
        })?;
        if can == 0 {
            return Err(device_error(
                format!("{} and {}", self.info.device(), other.info.device()),
                "the cards cannot reach each other's memory",
                "use cards of one host that nvidia-smi topo -p2p r shows as OK, or one card",
            ));
        }
        self.bind()?;
        // SAFETY: the handle is retained as long as `other` lives.
        match unsafe { sys::cuCtxEnablePeerAccess(card.handle, 0) } {
            sys::cudaError_enum::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            code => check("cuCtxEnablePeerAccess", code),
        }
    }

    /// Whether there is a card to give handles back to. Current or not: most often it is, and what
    /// is not given back is lost.
    pub(super) fn takes_back(&self) -> bool {
        let _ = self.bind();
        !self.is_described()
    }

    /// Bytes of all buffers now, and the most that there were at once.
    pub fn taken(&self) -> (usize, usize) {
        self.ledger.taken()
    }

    /// The most that buffers took of the card at once, in the pieces that the driver maps.
    pub fn most_mapped(&self) -> usize {
        self.ledger.most_mapped()
    }

    /// Free and total bytes of the card.
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the driver writes two numbers, here.
        check("cuMemGetInfo_v2", unsafe {
            sys::cuMemGetInfo_v2(&mut free, &mut total)
        })?;
        Ok((free, total))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(card) = &self.card {
            // SAFETY: releases what `new` retained, once.
            let _ = check("cuDevicePrimaryCtxRelease_v2", unsafe {
                sys::cuDevicePrimaryCtxRelease_v2(card.device)
            });
        }
    }
}
