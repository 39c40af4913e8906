// Sizes of attention and where a token's key and value lie. Keys: [page][kv_head][head_dim/8][16 tokens][8 elements],
// so that a lane is a token. Values: [page][kv_head][16 tokens][head_dim], so that a lane is eight elements.

struct Heads {
    head_dim: u32,
    num_q_heads: u32,
    num_kv_heads: u32,
    rope_dim: u32,      // leading elements of a head that are rotated, in adjacent pairs
    table_stride: u32,  // pages per slot in the page table
    q_stride: u32,      // elements from one token's queries to the next
    quads: u32,         // groups of up to 4 query heads that share a kv head
    scale: f32,         // of the scores
    window: u32,        // tokens up to its own that a row attends to; 0: all
    sinks: u32,         // tokens at the start that it attends to besides
}

fn key_index(page: u32, head: u32, position: u32, element: u32) -> u32 {
    let octets = heads.head_dim / 8u;
    return (((page * heads.num_kv_heads + head) * octets + element / 8u) * PAGE + position % PAGE) * 8u + element % 8u;
}

fn value_index(page: u32, head: u32, position: u32, element: u32) -> u32 {
    return ((page * heads.num_kv_heads + head) * PAGE + position % PAGE) * heads.head_dim + element;
}
