// SPDX-License-Identifier: BSD-3-Clause

// How fast is go-qcow2reader?  Its ReadAt, with a goroutine for each request in flight.
// The command line is that of tests/bench/league.c.
package main

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

	qcow2reader "github.com/lima-vm/go-qcow2reader"
)

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func read(disk io.ReaderAt, buf []byte, offset int64) {
	n, err := disk.ReadAt(buf, offset)
	if n == len(buf) && errors.Is(err, io.EOF) {
		err = nil
	}
	check(err)
}

func main() {
	log.SetFlags(0)
	if len(os.Args) != 6 {
		log.Fatal("usage: IMAGE crc|randread|read BLOCK DEPTH SECONDS")
	}
	work := os.Args[2]
	block, err := strconv.ParseInt(os.Args[3], 10, 64)
	check(err)
	depth, err := strconv.Atoi(os.Args[4])
	check(err)
	seconds, err := strconv.ParseFloat(os.Args[5], 64)
	check(err)

	f, err := os.Open(os.Args[1])
	check(err)
	disk, err := qcow2reader.Open(f)
	check(err)
	check(disk.Readable())
	blocks := disk.Size() / block

	if work == "crc" {
		crc := crc32.NewIEEE()
		_, err := io.CopyBuffer(struct{ io.Writer }{crc},
			struct{ io.Reader }{io.NewSectionReader(disk, 0, disk.Size())},
			make([]byte, block))
		check(err)
		fmt.Println(crc.Sum32())
		return
	}
	if work != "randread" && work != "read" {
		log.Fatal("it only reads")
	}
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
			n := int64(0)
			for time.Now().Before(end) {
				place := n % blocks
				if work == "randread" {
					place = random.Int64N(blocks)
				}
				read(disk, buf, place*block)
				n++
			}
			requests.Add(n)
		}()
	}
	workers.Wait()
	fmt.Printf("%.1f\n", float64(requests.Load())/time.Since(start).Seconds())
}
