// Downloads by HTTP/3 with quic-go, and compares every byte.
//
// client CASE HOST PORT DIRECTORY FILE...
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter"
)

// For all of it; a server that answers is far quicker.
const limit = 2 * time.Minute

// What a test of an address that is not validated may take.
const handshakeIdleTimeout = 30 * time.Second

type file struct {
	name    string
	content []byte
}

// What has happened on connections.
type events struct {
	lock sync.Mutex
	all  []qlogwriter.Event
}

func (e *events) AddProducer() qlogwriter.Recorder { return e }

func (e *events) Close() error { return nil }

func (e *events) RecordEvent(event qlogwriter.Event) {
	e.lock.Lock()
	defer e.lock.Unlock()
	e.all = append(e.all, event)
}

func (e *events) contain(is func(qlogwriter.Event) bool) bool {
	e.lock.Lock()
	defer e.lock.Unlock()
	return slices.ContainsFunc(e.all, is)
}

func isSent(kind qlog.PacketType) func(qlogwriter.Event) bool {
	return func(event qlogwriter.Event) bool {
		sent, is := event.(qlog.PacketSent)
		return is && sent.Header.PacketType == kind
	}
}

func isReceived(kind qlog.PacketType) func(qlogwriter.Event) bool {
	return func(event qlogwriter.Event) bool {
		received, is := event.(qlog.PacketReceived)
		return is && received.Header.PacketType == kind
	}
}

func isVersionNegotiation(event qlogwriter.Event) bool {
	_, is := event.(qlog.VersionNegotiationReceived)
	return is
}

// Whether a client has changed its keys of its own accord.
func isKeyUpdate(event qlogwriter.Event) bool {
	updated, is := event.(qlog.KeyUpdated)
	return is && updated.Trigger == qlog.KeyUpdateLocal
}

// Whether something has come on another path than the first.
func isReceivedElsewhere(event qlogwriter.Event) bool {
	received, is := event.(qlog.PacketReceived)
	return is && received.Tuple != ""
}

// The session that a server has given, as it is or as one that allows early data.
type sessions struct {
	lock            sync.Mutex
	session         *tls.ClientSessionState
	allowsEarlyData bool
	claimsEarlyData bool
}

func (s *sessions) Get(string) (*tls.ClientSessionState, bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.session, s.session != nil
}

func (s *sessions) haveAllowedEarlyData() bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.allowsEarlyData
}

func (s *sessions) Put(_ string, session *tls.ClientSessionState) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.session = nil
	if session == nil {
		return
	}
	ticket, state, err := session.ResumptionState()
	if err != nil {
		return
	}
	s.allowsEarlyData = s.allowsEarlyData || state.EarlyData
	if s.claimsEarlyData {
		state.EarlyData = true
		state.Extra = [][]byte{rememberedParameters()}
		session, err = tls.NewResumptionState(ticket, state)
		if err != nil {
			return
		}
	}
	s.session = session
}

// Transport parameters of a server as quic-go keeps them beside a session that allows early data.
func rememberedParameters() []byte {
	const sessionRevision, parametersRevision = 5, 1
	encoded := append([]byte("quic-go1"), sessionRevision, parametersRevision)
	// initial_max_data, initial_max_stream_data of each kind: 65,536 as integers of four bytes.
	for id := byte(0x04); id <= 0x07; id++ {
		encoded = append(encoded, id, 4, 0x80, 1, 0, 0)
	}
	// initial_max_streams of each kind, and active_connection_id_limit.
	return append(encoded, 0x08, 1, 10, 0x09, 1, 3, 0x0e, 1, 2)
}

type client struct {
	address  string
	tls      *tls.Config
	quic     *quic.Config
	sessions *sessions
}

// A connection, with which requests are made as soon as can be if `early`.
func (c *client) connect(ctx context.Context, early bool) (*quic.Conn, error) {
	server, err := net.ResolveUDPAddr("udp", c.address)
	if err != nil {
		return nil, err
	}
	transport, err := newTransport()
	if err != nil {
		return nil, err
	}
	if early {
		return transport.DialEarly(ctx, server, c.tls, c.quic)
	}
	return transport.Dial(ctx, server, c.tls, c.quic)
}

// Of a socket of its own, which lasts as long as this program.
func newTransport() (*quic.Transport, error) {
	socket, err := net.ListenUDP("udp", nil)
	if err != nil {
		return nil, err
	}
	return &quic.Transport{Conn: socket}, nil
}

func http3On(connection *quic.Conn) *http3.ClientConn {
	return (&http3.Transport{DisableCompression: true}).NewClientConn(connection)
}

// Asks for a file by a method; its body is to be read.
func (c *client) askBy(
	ctx context.Context, connection *http3.ClientConn, method string, name string,
) (io.ReadCloser, error) {
	url := fmt.Sprintf("https://localhost/%s", name)
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := connection.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", name, response.Status)
	}
	return response.Body, nil
}

// Asks for a file; its body is to be read.
func (c *client) ask(
	ctx context.Context, connection *http3.ClientConn, name string,
) (io.ReadCloser, error) {
	return c.askBy(ctx, connection, http.MethodGet, name)
}

func (c *client) get(ctx context.Context, connection *http3.ClientConn, file file) error {
	body, err := c.ask(ctx, connection, file.name)
	if err != nil {
		return err
	}
	return compare(body, file, nil)
}

// Reads the rest of a file of which something has been read.
func compare(body io.ReadCloser, file file, before []byte) error {
	defer body.Close()
	rest, err := io.ReadAll(body)
	if err != nil {
		return fmt.Errorf("%s: %w", file.name, err)
	}
	if !bytes.Equal(append(before, rest...), file.content) {
		return fmt.Errorf("other bytes of %s", file.name)
	}
	return nil
}

// Connects, and downloads one file after the other.
func (c *client) transfer(ctx context.Context, files []file) (*quic.Conn, error) {
	connection, err := c.connect(ctx, false)
	if err != nil {
		return nil, err
	}
	http := http3On(connection)
	for _, file := range files {
		if err := c.get(ctx, http, file); err != nil {
			return nil, err
		}
	}
	return connection, nil
}

func (c *client) multiplex(ctx context.Context, files []file) error {
	connection, err := c.connect(ctx, false)
	if err != nil {
		return err
	}
	http := http3On(connection)
	const each = 20
	results := make(chan error, each*len(files))
	for _, file := range files {
		for range each {
			go func() { results <- c.get(ctx, http, file) }()
		}
	}
	for range cap(results) {
		if err := <-results; err != nil {
			return err
		}
	}
	return nil
}

// Goes on from another socket in the midst of the largest file.
func (c *client) migrate(ctx context.Context, files []file) error {
	connection, err := c.connect(ctx, false)
	if err != nil {
		return err
	}
	file := slices.MaxFunc(files, func(a, b file) int { return len(a.content) - len(b.content) })
	body, err := c.ask(ctx, http3On(connection), file.name)
	if err != nil {
		return err
	}
	begun := make([]byte, len(file.content)/10)
	if _, err := io.ReadFull(body, begun); err != nil {
		return err
	}
	other, err := newTransport()
	if err != nil {
		return err
	}
	path, err := connection.AddPath(other)
	if err != nil {
		return err
	}
	if err := path.Probe(ctx); err != nil {
		return fmt.Errorf("probing a path: %w", err)
	}
	if err := path.Switch(); err != nil {
		return err
	}
	if err := compare(body, file, begun); err != nil {
		return err
	}
	if connection.LocalAddr().String() != other.Conn.LocalAddr().String() {
		return errors.New("the connection is where it was")
	}
	return nil
}

func (c *client) resume(ctx context.Context, files []file) error {
	connection, err := c.transfer(ctx, files)
	if err != nil {
		return err
	}
	connection.CloseWithError(0, "")
	connection, err = c.transfer(ctx, files)
	if err != nil {
		return err
	}
	if !connection.ConnectionState().TLS.DidResume {
		return errors.New("not resumed")
	}
	return nil
}

// Writes a request on a stream of its own: quic-go's client of HTTP/3, when early data is rejected,
// takes its stream back, and with it the next of this number. Returns how reading it ended.
func askEarly(connection *quic.Conn, name string) error {
	stream, err := connection.OpenStream()
	if err != nil {
		return err
	}
	// No dynamic table; :method, :scheme, :authority and :path by the static one (RFC 9204).
	section := []byte{0, 0, 0xc0 | 17, 0xc0 | 23, 0x50, 9}
	section = append(section, "localhost"...)
	section = append(section, 0x51, byte(len(name)+1), '/')
	section = append(section, name...)
	frame := append([]byte{0x01, byte(len(section))}, section...)
	if _, err := stream.Write(frame); err != nil {
		return err
	}
	_, err = io.ReadAll(stream)
	return err
}

// Changes its keys after a hundred packets, unless the server has done so before: it does that after
// ten to a thousand.
func (c *client) updateKeys(ctx context.Context, files []file, events *events) error {
	for range 50 {
		if _, err := c.transfer(ctx, files); err != nil {
			return err
		}
		if events.contain(isKeyUpdate) {
			return nil
		}
	}
	return errors.New("the server was always first")
}

// Sends a request as early data, and others when it is accepted.
func (c *client) sendEarly(ctx context.Context, files []file) error {
	connection, err := c.transfer(ctx, files)
	if err != nil {
		return err
	}
	connection.CloseWithError(0, "")
	connection, err = c.connect(ctx, true)
	if err != nil {
		return err
	}
	http := http3On(connection)
	body, err := c.askBy(ctx, http, http3.MethodGet0RTT, files[0].name)
	if err != nil {
		return err
	}
	if err := compare(body, files[0], nil); err != nil {
		return err
	}
	for _, file := range files {
		if err := c.get(ctx, http, file); err != nil {
			return err
		}
	}
	state := connection.ConnectionState()
	if !state.Used0RTT || !state.TLS.DidResume {
		return fmt.Errorf("0-RTT %v, resumed %v", state.Used0RTT, state.TLS.DidResume)
	}
	return nil
}

// Sends a request as early data, which its session claims to allow, and others when it is rejected.
func (c *client) sendEarlyInVain(ctx context.Context, files []file) error {
	connection, err := c.transfer(ctx, files)
	if err != nil {
		return err
	}
	connection.CloseWithError(0, "")
	if c.sessions.haveAllowedEarlyData() {
		return errors.New("a ticket allows early data")
	}
	connection, err = c.connect(ctx, true)
	if err != nil {
		return err
	}
	if err := askEarly(connection, files[0].name); !errors.Is(err, quic.Err0RTTRejected) {
		return fmt.Errorf("early data was not rejected: %v", err)
	}
	connection, err = connection.NextConnection(ctx)
	if err != nil {
		return err
	}
	http := http3On(connection)
	for _, file := range files {
		if err := c.get(ctx, http, file); err != nil {
			return err
		}
	}
	state := connection.ConnectionState()
	if state.Used0RTT || !state.TLS.DidResume {
		return fmt.Errorf("0-RTT %v, resumed %v", state.Used0RTT, state.TLS.DidResume)
	}
	return nil
}

func run(kind string, address string, files []file) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	events := &events{}
	sessions := &sessions{claimsEarlyData: kind == "0-RTT refused"}
	c := &client{
		address: address,
		tls: &tls.Config{
			InsecureSkipVerify: true,
			NextProtos:         []string{http3.NextProtoH3},
			ServerName:         "localhost",
			ClientSessionCache: sessions,
		},
		quic: &quic.Config{
			HandshakeIdleTimeout: handshakeIdleTimeout,
			Tracer: func(context.Context, bool, quic.ConnectionID) qlogwriter.Trace {
				return events
			},
		},
		sessions: sessions,
	}
	if kind == "version negotiation" {
		c.quic.Versions = []quic.Version{quic.Version2, quic.Version1}
	}
	var err error
	var has func(qlogwriter.Event) bool
	switch kind {
	case "multiplexing":
		err = c.multiplex(ctx, files)
	case "resumption":
		err = c.resume(ctx, files)
	case "key update":
		err = c.updateKeys(ctx, files, events)
	case "migration":
		err = c.migrate(ctx, files)
		has = isReceivedElsewhere
	case "0-RTT":
		err = c.sendEarly(ctx, files)
		has = isSent(qlog.PacketType0RTT)
	case "0-RTT refused":
		err = c.sendEarlyInVain(ctx, files)
		has = isSent(qlog.PacketType0RTT)
	default:
		_, err = c.transfer(ctx, files)
	}
	switch kind {
	case "retry":
		has = isReceived(qlog.PacketTypeRetry)
	case "version negotiation":
		has = isVersionNegotiation
	}
	if err == nil && has != nil && !events.contain(has) {
		return errors.New("every byte came, but not as it was to be shown")
	}
	return err
}

func main() {
	kind, host, port, directory := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	var files []file
	for _, name := range os.Args[5:] {
		content, err := os.ReadFile(filepath.Join(directory, name))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		files = append(files, file{name, content})
	}
	if err := run(kind, net.JoinHostPort(host, port), files); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
