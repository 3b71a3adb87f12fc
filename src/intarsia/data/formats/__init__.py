"""Read one kind of source each as columns: delimited text, the libsvm format, a query's rows."""
