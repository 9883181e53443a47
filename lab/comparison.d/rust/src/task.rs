// SPDX-License-Identifier: BSD-3-Clause
//
// What the command line asks for: see tests/bench/comparison.c.

use std::error::Error;
use std::time::{Duration, Instant};

pub type Failure = Box<dyn Error>;

#[derive(Clone, Copy, PartialEq)]
pub enum Work {
    Crc,
    RandRead,
    RandWrite,
    Read,
}

pub struct Task {
    pub image: String,
    pub work: Work,
    pub block: usize,
    pub depth: usize,
    pub seconds: f64,
}

impl Task {
    pub fn from_args() -> Result<Task, Failure> {
        let args: Vec<String> = std::env::args().collect();
        if args.len() != 6 {
            return Err("IMAGE crc|randread|randwrite|read BLOCK DEPTH SECONDS".into());
        }
        let work = match args[2].as_str() {
            "crc" => Work::Crc,
            "randread" => Work::RandRead,
            "randwrite" => Work::RandWrite,
            "read" => Work::Read,
            _ => return Err("no such work".into()),
        };
        Ok(Task {
            image: args[1].clone(),
            work,
            block: args[3].parse()?,
            depth: args[4].parse()?,
            seconds: args[5].parse()?,
        })
    }

    pub fn writes(&self) -> bool {
        self.work == Work::RandWrite
    }

    pub fn deadline(&self) -> Instant {
        Instant::now() + Duration::from_secs_f64(self.seconds)
    }
}

/// The offsets of one worker's requests.
pub struct Places {
    random: Option<u64>,
    next: u64,
    blocks: u64,
    block: u64,
}

impl Places {
    pub fn new(task: &Task, size: u64, worker: usize) -> Places {
        let seed = (worker as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Places {
            random: (task.work != Work::Read).then_some(seed),
            next: 0,
            blocks: size / task.block as u64,
            block: task.block as u64,
        }
    }

    pub fn next(&mut self) -> u64 {
        let n = match &mut self.random {
            Some(s) => {
                *s ^= *s << 13;
                *s ^= *s >> 7;
                *s ^= *s << 17;
                *s >> 8
            }
            None => {
                self.next += 1;
                self.next - 1
            }
        };
        n % self.blocks * self.block
    }
}

pub fn report(requests: u64, since: Instant) {
    println!("{:.1}", requests as f64 / since.elapsed().as_secs_f64());
}
