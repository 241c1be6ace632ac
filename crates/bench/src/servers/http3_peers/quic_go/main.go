// Serves the files of a directory over HTTP/3 with quic-go.
//
// server ADDRESS:PORT DIRECTORY CERTIFICATE KEY
// server version
package main

import (
	"fmt"
	"net/http"
	"os"
	"runtime/debug"

	"github.com/quic-go/quic-go/http3"
)

// The version of quic-go that is linked in, as Go's module system states it.
func version() string {
	information, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, module := range information.Deps {
		if module.Path == "github.com/quic-go/quic-go" {
			return module.Version
		}
	}
	return ""
}

func main() {
	if len(os.Args) == 2 && os.Args[1] == "version" {
		fmt.Println(version())
		return
	}
	if len(os.Args) != 5 {
		fmt.Fprintf(os.Stderr, "usage: %s ADDRESS:PORT DIRECTORY CERTIFICATE KEY\n", os.Args[0])
		os.Exit(2)
	}
	address, directory, certificate, key := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	server := http3.Server{Addr: address, Handler: http.FileServer(http.Dir(directory))}
	fmt.Fprintln(os.Stderr, server.ListenAndServeTLS(certificate, key))
	os.Exit(1)
}
