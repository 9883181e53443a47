// SPDX-License-Identifier: BSD-3-Clause
//
// How fast is imago?  Its synchronous build, with a thread for each request in flight.

mod task;

use imago::file::File;
use imago::qcow2::Qcow2;
use imago::{FormatAccess, FormatDriverBuilder, PermissiveImplicitOpenGate};
use std::time::Instant;
use task::{report, Failure, Places, Task, Work};

fn run(disk: &FormatAccess<File>, task: &Task, worker: usize, end: Instant) -> u64 {
    let mut buf = vec![b'x'; task.block];
    let mut places = Places::new(task, disk.size(), worker);
    let mut requests = 0;
    while Instant::now() < end {
        let offset = places.next();
        if task.writes() {
            disk.write(&buf, offset).expect("a write failed");
        } else {
            disk.read(&mut buf, offset).expect("a read failed");
        }
        requests += 1;
    }
    requests
}

fn checksum(disk: &FormatAccess<File>, block: usize) -> Result<(), Failure> {
    let mut crc = crc32fast::Hasher::new();
    let mut offset = 0;
    while offset < disk.size() {
        let mut buf = vec![0; block.min((disk.size() - offset) as usize)];
        disk.read(&mut buf, offset)?;
        crc.update(&buf);
        offset += buf.len() as u64;
    }
    println!("{}", crc.finalize());
    Ok(())
}

fn main() -> Result<(), Failure> {
    let task = Task::from_args()?;
    let image = Qcow2::<File>::builder_path(&task.image)
        .write(task.writes())
        .open(PermissiveImplicitOpenGate::default())?;
    let disk = FormatAccess::new(image);

    if task.work == Work::Crc {
        return checksum(&disk, task.block);
    }
    let (start, end) = (Instant::now(), task.deadline());
    let requests = std::thread::scope(|s| {
        let workers: Vec<_> = (0..task.depth)
            .map(|i| {
                let (disk, task) = (&disk, &task);
                s.spawn(move || run(disk, task, i, end))
            })
            .collect();
        workers.into_iter().map(|w| w.join().expect("a worker failed")).sum()
    });
    report(requests, start);
    disk.flush()?;
    Ok(())
}
