module splitway/interop

go 1.22
