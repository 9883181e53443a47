// SPDX-License-Identifier: BSD-3-Clause
//
// How fast is qcow2-rs?  On tokio-uring, as in its manual: one thread, with a task for
// each request in flight.

mod task;

use qcow2_rs::dev::{Qcow2Dev, Qcow2DevParams};
use qcow2_rs::helpers::Qcow2IoBuf;
use qcow2_rs::uring::Qcow2IoUring;
use qcow2_rs::utils::qcow2_setup_dev_uring;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;
use task::{report, Failure, Places, Task, Work};

type Disk = Qcow2Dev<Qcow2IoUring>;

async fn run(disk: Rc<Disk>, task: Rc<Task>, worker: usize, end: Instant) -> u64 {
    let mut buf = Qcow2IoBuf::<u8>::new(task.block);
    let mut places = Places::new(&task, disk.info.virtual_size(), worker);
    let mut requests = 0;
    while Instant::now() < end {
        let offset = places.next();
        if task.writes() {
            disk.write_at(&buf, offset).await.expect("a write failed");
        } else {
            let n = disk.read_at(&mut buf, offset).await.expect("a read failed");
            assert_eq!(n, task.block, "a short read");
        }
        requests += 1;
    }
    requests
}

async fn checksum(disk: &Disk, block: usize) -> Result<(), Failure> {
    let mut crc = crc32fast::Hasher::new();
    let (mut offset, size) = (0, disk.info.virtual_size());
    while offset < size {
        let mut buf = Qcow2IoBuf::<u8>::new(block.min((size - offset) as usize));
        disk.read_at(&mut buf, offset).await?;
        crc.update(&buf);
        offset += buf.len() as u64;
    }
    println!("{}", crc.finalize());
    Ok(())
}

fn main() -> Result<(), Failure> {
    let task = Rc::new(Task::from_args()?);
    tokio_uring::start(async move {
        let params = Qcow2DevParams::new(9, None, None, !task.writes(), false);
        let path = PathBuf::from(&task.image);
        let disk = Rc::new(qcow2_setup_dev_uring(&path, &params).await?);

        if task.work == Work::Crc {
            return checksum(&disk, task.block).await;
        }
        let (start, end) = (Instant::now(), task.deadline());
        let workers: Vec<_> = (0..task.depth)
            .map(|i| tokio_uring::spawn(run(disk.clone(), task.clone(), i, end)))
            .collect();
        let mut requests = 0;
        for worker in workers {
            requests += worker.await?;
        }
        report(requests, start);
        disk.flush_meta().await?;
        Ok(())
    })
}
