// The same as http2.py for Go's net/http, and crowds of streams.
//
//	http2 download FILE...
//	http2 crowd CONNECTIONS STREAMS FILE...
//	http2 cancel CONNECTIONS STREAMS FILE...
//
// A crowd opens all of its streams at once, in turns of the files. Each request of `cancel` is given up with a chance of one in two, somewhere
// in its response; the others are complete.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

const first, last = 100, 199

// For all of it; a server that answers is far quicker.
const limit = 100 * time.Second

type file struct {
	name    string
	content []byte
}

// A client whose requests share a connection.
type client struct {
	http        http.Client
	connections atomic.Int32
}

func newClient(trust *x509.CertPool) *client {
	made := &client{}
	made.http.Timeout = limit
	made.http.Transport = &http.Transport{
		TLSClientConfig:    &tls.Config{RootCAs: trust},
		ForceAttemptHTTP2:  true,
		DisableCompression: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			made.connections.Add(1)
			return (&net.Dialer{}).DialContext(ctx, network, address)
		},
	}
	return made
}

func (c *client) get(ctx context.Context, name, part string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, "GET", "https://"+os.Getenv("HOST")+"/"+name, nil)
	if err != nil {
		return nil, err
	}
	if part != "" {
		request.Header.Set("Range", part)
	}
	response, err := c.http.Do(request)
	if err == nil && response.ProtoMajor != 2 {
		err = errors.New("not over HTTP/2")
	}
	return response, err
}

func (c *client) check(name, part string, wanted []byte) error {
	response, err := c.get(context.Background(), name, part)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if !bytes.Equal(got, wanted) {
		return fmt.Errorf("%s: other bytes, %d", name, len(got))
	}
	return nil
}

// Gives a request up after some bytes, which must be right.
func (c *client) cancel(file file) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	response, err := c.get(ctx, file.name, "")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	got := make([]byte, rand.Intn(len(file.content)))
	if _, err := io.ReadFull(response.Body, got); err != nil {
		return fmt.Errorf("%s: %w", file.name, err)
	}
	if !bytes.HasPrefix(file.content, got) {
		return fmt.Errorf("%s: other bytes", file.name)
	}
	return nil
}

// Makes the connection, and then all requests at once.
func (c *client) crowd(files []file, streams int, cancels bool) error {
	if err := c.check(files[0].name, "bytes=100-199", files[0].content[first:last+1]); err != nil {
		return err
	}
	results := make([]error, streams)
	var all sync.WaitGroup
	for stream := range streams {
		all.Add(1)
		go func() {
			defer all.Done()
			file := files[stream%len(files)]
			if cancels && rand.Intn(2) == 0 {
				results[stream] = c.cancel(file)
			} else {
				results[stream] = c.check(file.name, "", file.content)
			}
		}()
	}
	all.Wait()
	if connections := c.connections.Load(); connections != 1 {
		results = append(results, fmt.Errorf("%d connections", connections))
	}
	return errors.Join(results...)
}

func run() error {
	certificate, err := os.ReadFile(os.Getenv("TRUST"))
	if err != nil {
		return err
	}
	trust := x509.NewCertPool()
	trust.AppendCertsFromPEM(certificate)
	kind, names, connections, streams := os.Args[1], os.Args[2:], 1, 0
	if kind != "download" {
		connections, _ = strconv.Atoi(names[0])
		streams, _ = strconv.Atoi(names[1])
		names = names[2:]
	}
	var files []file
	for _, name := range names {
		content, err := os.ReadFile(filepath.Join(os.Getenv("ROOT"), name))
		if err != nil {
			return err
		}
		files = append(files, file{name, content})
	}
	if kind == "download" {
		streams = len(files)
	}
	results := make([]error, connections)
	var all sync.WaitGroup
	for connection := range connections {
		all.Add(1)
		go func() {
			defer all.Done()
			results[connection] = newClient(trust).crowd(files, streams, kind == "cancel")
		}()
	}
	all.Wait()
	return errors.Join(results...)
}

func main() {
	if err := run(); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}
