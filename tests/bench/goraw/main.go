// go-raw: what an event costs in Go where no JSON tree is built; the counterpart of tests/bench/floor.py.
//
// It lists, then takes each line of the watch, finds by byte search what it needs, cuts managedFields, hashes, compresses and keeps the
// object, and produces one record, keyed namespace/name. Where the floor and this program differ, this one does
// less: two headers instead of eighteen, no positions, no check that a line is valid JSON. Like the floor it has no resume, no bound of its own,
// no metrics, and it ends with the first error. All settings of franz-go are its defaults (acks=all, idempotent, 10 ms linger), but for zstd
// at level 1, which the relay uses too. Both compressions are by klauspost/compress: nothing here is C.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"

	"github.com/klauspost/compress/zstd"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	bufferBytes = 128 << 10
	page        = "500"
)

var (
	typeMeta      = []byte(`{"kind":"Pod","apiVersion":"v1",`)
	linePrefix    = []byte(`{"type":"MODIFIED","object":`)
	metadataKey   = []byte(`"metadata":{`)
	managedFields = []byte(`,"managedFields":`)
	nameKey       = []byte(`"name":"`)
	namespaceKey  = []byte(`"namespace":"`)
	uidKey        = []byte(`"uid":"`)
	versionKey    = []byte(`"resourceVersion":"`)
	continueKey   = []byte(`"continue":"`)
	itemsKey      = []byte(`"items":[`)
)

// held is what is kept of an object.
type held struct {
	uid, version string
	hash         [8]byte
	packed       []byte
}

type relay struct {
	client  *kgo.Client
	packer  *zstd.Encoder
	objects map[string]*held
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "go-raw:", err)
		os.Exit(1)
	}
}

// text returns the string behind a key, up to its closing quote; these strings have no escapes.
func text(json, key []byte) []byte {
	at := bytes.Index(json, key)
	if at < 0 {
		return nil
	}
	rest := json[at+len(key):]
	return rest[:bytes.IndexByte(rest, '"')]
}

// end returns the length of the object or array with which json begins.
func end(json []byte) int {
	depth := 0
	for at := 0; at < len(json); at++ {
		switch json[at] {
		case '"':
			for at++; json[at] != '"'; at++ {
				if json[at] == '\\' {
					at++
				}
			}
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return at + 1
			}
		}
	}
	check(fmt.Errorf("a value without an end: %.80q", json))
	return 0
}

// publish takes one object as the server wrote it, with its type in front, and queues its record.
func (r *relay) publish(typed, object []byte) {
	start := bytes.Index(object, metadataKey)
	metadata := object[start+len(metadataKey):]
	value := make([]byte, 0, len(typed)+len(object))
	value = append(value, typed...)
	if cut := bytes.Index(object, managedFields); cut >= 0 {
		value = append(value, object[:cut]...)
		cut += len(managedFields)
		value = append(value, object[cut+end(object[cut:]):]...)
	} else {
		value = append(value, object...)
	}
	namespace, name := text(metadata, namespaceKey), text(metadata, nameKey)
	key := make([]byte, 0, len(namespace)+1+len(name))
	key = append(append(append(key, namespace...), '/'), name...)
	if r.packer == nil {
		r.train(value)
	}
	entry := r.objects[string(key)]
	if entry == nil {
		entry = &held{uid: string(text(metadata, uidKey))}
		r.objects[string(key)] = entry
	}
	sum := sha256.New()
	sum.Write(key)
	sum.Write([]byte{0})
	sum.Write(value)
	entry.hash = [8]byte(sum.Sum(nil))
	entry.version = string(text(metadata, versionKey))
	entry.packed = r.packer.EncodeAll(value, make([]byte, 0, len(value)/4))
	headers := []kgo.RecordHeader{
		{Key: "content-type", Value: []byte("application/json")},
		{Key: "ce_wrrv", Value: []byte(entry.version)},
	}
	record := &kgo.Record{Key: key, Value: value, Headers: headers}
	r.client.Produce(context.Background(), record, func(_ *kgo.Record, err error) { check(err) })
}

// train makes the compressor, with the first object as its dictionary.
func (r *relay) train(sample []byte) {
	packer, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithEncoderCRC(false), zstd.WithEncoderDictRaw(1, bytes.Clone(sample)))
	check(err)
	r.packer = packer
}

func get(address string, query url.Values) io.ReadCloser {
	answer, err := http.Get(address + "?" + query.Encode())
	check(err)
	if answer.StatusCode != http.StatusOK {
		check(fmt.Errorf("%s: %s", address, answer.Status))
	}
	return answer.Body
}

// list publishes everything there is, page by page; the version of the list.
func (r *relay) list(address string) string {
	query := url.Values{"limit": {page}}
	for {
		answer := get(address, query)
		body, err := io.ReadAll(answer)
		check(err)
		answer.Close()
		at := bytes.Index(body, itemsKey)
		head, items := body[:at], body[at+len(itemsKey):]
		for len(items) > 0 && items[0] != ']' {
			length := end(items)
			r.publish(typeMeta, items[1:length])
			items = bytes.TrimPrefix(items[length:], []byte(","))
		}
		more := text(head, continueKey)
		if more == nil {
			check(r.client.Flush(context.Background()))
			return string(text(head, versionKey))
		}
		query.Set("continue", string(more))
	}
}

func main() {
	if len(os.Args) != 5 {
		check(fmt.Errorf("usage: goraw PORT BOOTSTRAP TOPIC PARTITIONS, of which it asks the broker"))
	}
	address := "http://127.0.0.1:" + os.Args[1] + "/api/v1/pods"
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[2]), kgo.DefaultProduceTopic(os.Args[3]),
		kgo.ProducerBatchCompression(kgo.ZstdCompression().WithLevel(1)))
	check(err)
	http.DefaultTransport.(*http.Transport).ReadBufferSize = bufferBytes
	r := &relay{client: client, objects: map[string]*held{}}
	version := r.list(address)
	watch := get(address, url.Values{"watch": {"1"}, "resourceVersion": {version}})
	fmt.Println("watching")
	lines := bufio.NewReaderSize(watch, bufferBytes)
	for {
		line, err := lines.ReadSlice('\n')
		check(err)
		if !bytes.HasPrefix(line, linePrefix) {
			check(fmt.Errorf("not a line of a change: %.80q", line))
		}
		r.publish(nil, line[len(linePrefix):len(line)-2])
	}
}
