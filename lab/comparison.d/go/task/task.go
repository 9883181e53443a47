// SPDX-License-Identifier: BSD-3-Clause

// Package task does what the command line asks for with what a library has opened: see
// tests/bench/comparison.c.  Each request in flight has a goroutine.
package task

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// Disk is an opened image.  One that is opened for writing is an io.WriterAt as well.
type Disk interface {
	io.ReaderAt
	io.Closer
	Size() int64
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func all(n int, buf []byte, err error) {
	if n == len(buf) && errors.Is(err, io.EOF) {
		err = nil
	}
	check(err)
	if n != len(buf) {
		log.Fatalf("%d bytes in place of %d", n, len(buf))
	}
}

func read(disk Disk, buf []byte, offset int64) {
	n, err := disk.ReadAt(buf, offset)
	all(n, buf, err)
}

func checksum(disk Disk, block int64) uint32 {
	crc := uint32(0)
	for offset := int64(0); offset < disk.Size(); offset += block {
		buf := make([]byte, min(block, disk.Size()-offset))
		read(disk, buf, offset)
		crc = crc32.Update(crc, crc32.IEEETable, buf)
	}
	return crc
}

// measure returns requests per second.
func measure(disk Disk, work string, block int64, depth int, seconds float64) float64 {
	blocks := disk.Size() / block
	writer, _ := disk.(io.WriterAt)
	var requests atomic.Int64
	var workers sync.WaitGroup
	start := time.Now()
	end := start.Add(time.Duration(seconds * float64(time.Second)))
	for i := range depth {
		workers.Add(1)
		go func() {
			defer workers.Done()
			random := rand.New(rand.NewPCG(uint64(i), 1))
			buf := make([]byte, block)
			for i := range buf {
				buf[i] = 'x'
			}
			n := int64(0)
			for time.Now().Before(end) {
				place := n % blocks
				if work != "read" {
					place = random.Int64N(blocks)
				}
				if work == "randwrite" {
					n, err := writer.WriteAt(buf, place*block)
					all(n, buf, err)
				} else {
					read(disk, buf, place*block)
				}
				n++
			}
			requests.Add(n)
		}()
	}
	workers.Wait()
	return float64(requests.Load()) / time.Since(start).Seconds()
}

// Main is the program of the library whose images open opens.
func Main(open func(image string, writes bool) (Disk, error)) {
	log.SetFlags(0)
	if len(os.Args) != 6 {
		log.Fatal("usage: IMAGE crc|randread|randwrite|read BLOCK DEPTH SECONDS")
	}
	work := os.Args[2]
	block, err := strconv.ParseInt(os.Args[3], 10, 64)
	check(err)
	depth, err := strconv.Atoi(os.Args[4])
	check(err)
	seconds, err := strconv.ParseFloat(os.Args[5], 64)
	check(err)

	disk, err := open(os.Args[1], work == "randwrite")
	check(err)
	switch work {
	case "crc":
		fmt.Println(checksum(disk, block))
	case "randread", "randwrite", "read":
		fmt.Printf("%.1f\n", measure(disk, work, block, depth, seconds))
	default:
		log.Fatal("no such work")
	}
	check(disk.Close())
}
