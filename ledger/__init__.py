"""What happened: an append-only record of calls that can be asked, after any crash, whether an effect could have happened.

Knows no HTTP and no provider. FORMAT.md is the page that the store and the verifier are both written from.

    event       a past-tense fact, never changed                      events, codec
    ladder      which event may follow which evidence: one table      ladder
    projection  events -> state; pure, never stored                   projection, calls, stages
    claim       I3: who may start, asked again at every write         claims
    store       SQLite, one writing connection; operations as data    sqlite, operations, queries, sql/
    writer      one thread, group commit, then one receipt fsync      writer
    reader      read-only, beside the writer and after its death      reader
    body        content-defined chunks, compressed, by digest         bodies
    receipt     the proxy's own fsynced second witness                receipts
    spool       a response while it arrives, for salvage              spool
    epoch       one life of the one process that owns a state dir     epochs
    recovery    witnesses agree? salvage; open the next epoch         recovery
    failpoint   a named place where a test may break the process      failpoints
"""
