// SPDX-License-Identifier: BSD-3-Clause

// How fast is go-qcow2reader?  Its ReadAt, with a goroutine for each request in flight.
package main

import (
	"errors"
	"os"

	"comparison/task"

	qcow2reader "github.com/lima-vm/go-qcow2reader"
)

func main() {
	task.Main(func(image string, writes bool) (task.Disk, error) {
		if writes {
			return nil, errors.New("it only reads")
		}
		f, err := os.Open(image)
		if err != nil {
			return nil, err
		}
		disk, err := qcow2reader.Open(f)
		if err != nil {
			return nil, err
		}
		return disk, disk.Readable()
	})
}
