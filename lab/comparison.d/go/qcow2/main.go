// SPDX-License-Identifier: BSD-3-Clause

// How fast is go-qcow2?  Its ReadAt and WriteAt, with a goroutine for each request in
// flight.  Its caches, which count tables and clusters (of 64K here), get as much memory
// as the plugin's.  Its barriers are those that sync when it is flushed, as the plugin
// does.
package main

import (
	"os"

	"comparison/task"

	qcow2 "github.com/ehrlich-b/go-qcow2"
)

const (
	tables   = (32 << 20) / (64 << 10)
	clusters = (16 << 20) / (64 << 10)
)

func main() {
	task.Main(func(image string, writes bool) (task.Disk, error) {
		flag := os.O_RDONLY
		if writes {
			flag = os.O_RDWR
		}
		disk, err := qcow2.OpenFile(image, flag, 0, qcow2.WithL2CacheSize(tables),
			qcow2.WithCompressedCacheSize(clusters))
		if err != nil {
			return nil, err
		}
		disk.SetWriteBarrierMode(qcow2.BarrierBatched)
		return disk, nil
	})
}
