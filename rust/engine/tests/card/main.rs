//! What runs on a card, real or simulated: sampler, prompts, steps, drafts and copies.
mod beside;
mod card;
mod card_model;
mod device_sampler;
#[path = "../host/fixture.rs"]
mod fixture;
mod prefill;
mod rounds;
mod steps;
mod uploads;
