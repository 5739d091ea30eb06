//! Layers of Mamba-2 (<https://arxiv.org/abs/2405.21060>): a short convolution, the scan and its gate, a norm
//! of groups.

use super::build::Builder;
use crate::config::Mamba2Config;
use crate::error::{Error, Result};
use crate::plan::{BufferId, Mamba2, Norm, Op, RowPart};

impl Builder<'_> {
    /// How the model's layers of Mamba-2 are shaped.
    ///
    /// # Errors
    /// [`Error::Internal`] of an architecture without.
    pub fn mamba2_of_file(&self) -> Result<Mamba2Config> {
        let missing = || Error::Internal(format!("{} has no layers of Mamba-2", self.config.arch));
        self.config.mamba2.ok_or_else(missing)
    }

    /// The block of a layer, of x under `attn_norm`: what is to be added to x.
    pub fn mamba2(&mut self, layer: usize, x: BufferId, of: Mamba2Config) -> Result<BufferId> {
        let Mamba2Config {
            conv_kernel: taps,
            n_head,
            head_dim,
            n_group,
            d_state,
        } = of;
        let (n_embd, inner) = (self.config.n_embd, n_head * head_dim);
        let channels = inner + 2 * n_group * d_state;
        let wide = inner + channels + n_head;
        let (projected, convolved) = (
            self.buffer("projected", wide),
            self.buffer("convolved", channels),
        );
        let (out, delta) = (self.buffer("scanned", inner), self.buffer("delta", n_embd));
        let name = |part: &str| format!("blk.{layer}.{part}");
        let norm = Some(self.norm(&name("attn_norm.weight"), n_embd)?);
        self.product(x, norm, layer, "ssm_in", &[n_embd, wide], projected)?;
        let weight = self.table(&name("ssm_conv1d.weight"), &[taps, channels])?;
        let bias = Some(self.weight(&name("ssm_conv1d.bias"), &[channels])?);
        let state = self.state(&format!("conv[{layer}]"), (taps - 1) * channels);
        self.push(Op::ShortConv {
            x: projected,
            weight,
            bias,
            state,
            out: convolved,
            taps,
            silu: true,
            part: Some(RowPart {
                first: inner,
                of: wide,
            }),
            dilation: 1,
        });
        let a = self.table(&name("ssm_a"), &[1, n_head])?;
        let d = self.table(&name("ssm_d"), &[1, n_head])?;
        let dt = self.weight(&name("ssm_dt.bias"), &[n_head])?;
        let state = self.state(&format!("mamba2[{layer}]"), inner * d_state);
        self.push(Op::Mamba2(Mamba2 {
            projected,
            convolved,
            a,
            dt,
            d,
            state,
            out,
            n_head,
            n_group,
            head_dim,
            d_state,
        }));
        let (name, eps) = (name("ssm_norm.weight"), self.config.rms_eps);
        let norm = match n_group {
            // One group is the row.
            1 => Some(Norm {
                weight: self.row(&name, inner)?,
                eps,
            }),
            _ => {
                let weight = self.table(&name, &[inner / n_group, n_group])?;
                self.normalize(out, Norm { weight, eps }, out, inner / n_group);
                None
            }
        };
        self.product(out, norm, layer, "ssm_out", &[inner, n_embd], delta)?;
        Ok(delta)
    }
}
