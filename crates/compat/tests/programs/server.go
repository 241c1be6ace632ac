// A server of net/http: it sends files of a folder, and bodies back as they come.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
)

func echo(answer http.ResponseWriter, request *http.Request) {
	if request.Method != http.MethodPost {
		answer.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	if err := http.NewResponseController(answer).EnableFullDuplex(); err != nil {
		log.Print(err)
	}
	if _, err := io.Copy(answer, request.Body); err != nil {
		log.Print(err)
	}
}

// Who asks, and what: addresses are those of TCP.
func who(answer http.ResponseWriter, request *http.Request) {
	local := request.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	fmt.Fprintf(answer, "%s %s", request.RemoteAddr, local)
}

// What another server says, asked by a connection of this program's.
func ask(answer http.ResponseWriter, request *http.Request) {
	said, err := http.Get(request.URL.Query().Get("url"))
	if err != nil {
		http.Error(answer, err.Error(), http.StatusBadGateway)
		return
	}
	defer said.Body.Close()
	io.Copy(answer, said.Body)
}

func main() {
	http.Handle("/", http.FileServer(http.Dir(os.Args[1])))
	http.HandleFunc("/echo", echo)
	http.HandleFunc("/who", who)
	http.HandleFunc("/ask", ask)
	log.Fatal(http.ListenAndServe(":"+os.Args[2], nil))
}
