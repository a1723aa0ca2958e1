"""Data preparation: turns any source into a folder of arrays that devices map into memory and read by row.

`writer` writes that folder from what `sources` reads, `prepared_data` reads it and selects the rows of a round. This
file imports nothing: devices read the folder without the libraries (30 MB) that read the sources. Rejected: tokenizing
while training, which repeats the work on every device and epoch and leaves nothing to inspect; and the `datasets`
package, except for names on the hub, since pyarrow reads its Arrow files.
"""
