// Attention of one row, in one order of operations: a page is one step of the online softmax, and pages that the row does
// not reach are no step. attention_tiled does the same for several rows of a sequence at once and must give the same bits.

// The highest score before the first. A token that does not count scores far less, so that its weight is 0 even where
// no token counts yet: such a page changes the state by exact zeros and ones.
const NO_SCORE: f32 = -1.0e38;
const LEFT_OUT: f32 = -3.0e38;

var<private> first_head: u32;  // first of the up to four query heads
var<private> head_count: u32;

// Which query heads a workgroup takes; returns their kv head.
fn choose_heads(group: u32) -> u32 {
    let kv_head = group / heads.quads;
    let shared_by = heads.num_q_heads / heads.num_kv_heads;
    let quad = group % heads.quads;
    first_head = kv_head * shared_by + quad * 4u;
    head_count = min(shared_by - quad * 4u, 4u);
    return kv_head;
}

// Element `e` of the four heads' queries; a head beyond the last reads as zero.
fn query(row: u32, e: u32) -> vec4f {
    let at = row * heads.q_stride + first_head * heads.head_dim + e;
    var v = vec4f(0.0);
    if (e < heads.head_dim) {
        v.x = q[at];
        if (head_count > 1u) { v.y = q[at + heads.head_dim]; }
        if (head_count > 2u) { v.z = q[at + 2u * heads.head_dim]; }
        if (head_count > 3u) { v.w = q[at + 3u * heads.head_dim]; }
    }
    return v;
}

struct Queries {
    e0: vec4f, e1: vec4f, e2: vec4f, e3: vec4f, e4: vec4f, e5: vec4f, e6: vec4f, e7: vec4f,
}

fn load_queries(row: u32, slice: u32) -> Queries {
    let e = slice * 64u + lane * 8u;
    let v = Queries(
        query(row, e), query(row, e + 1u), query(row, e + 2u), query(row, e + 3u),
        query(row, e + 4u), query(row, e + 5u), query(row, e + 6u), query(row, e + 7u),
    );
    tell_done();
    tell(0u, v.e0);
    tell(1u, v.e1);
    tell(2u, v.e2);
    tell(3u, v.e3);
    tell(4u, v.e4);
    tell(5u, v.e5);
    tell(6u, v.e6);
    tell(7u, v.e7);
    tell_done();
    return v;
}

fn heard_queries(v: Queries, source: u32) -> Queries {
    return Queries(
        heard(0u, source, v.e0), heard(1u, source, v.e1), heard(2u, source, v.e2), heard(3u, source, v.e3),
        heard(4u, source, v.e4), heard(5u, source, v.e5), heard(6u, source, v.e6), heard(7u, source, v.e7),
    );
}

fn score(sum: vec4f, v: Queries, key: Octet) -> vec4f {
    let a = fma(v.e1, vec4f(key.low.y), fma(v.e0, vec4f(key.low.x), sum));
    let b = fma(v.e3, vec4f(key.low.w), fma(v.e2, vec4f(key.low.z), a));
    let c = fma(v.e5, vec4f(key.high.y), fma(v.e4, vec4f(key.high.x), b));
    return fma(v.e7, vec4f(key.high.w), fma(v.e6, vec4f(key.high.z), c));
}

// Everything of one row, for the heads that choose_heads() has set and the output elements of `part`.
fn attend_row(row: u32, kv_head: u32, part: u32) {
    let at = row_of(row);
    let position = at.y;
    let octets = heads.head_dim / 8u;
    let slices = (octets + 7u) / 8u;
    let value_octet = part * 8u + lane;
    let value_lane = min(value_octet, octets - 1u);  // lanes beyond head_dim read, but never write

    var queries = load_queries(row, 0u);
    var highest = vec4f(NO_SCORE);
    var mass = vec4f(0.0);
    var o0 = vec4f(0.0);
    var o1 = vec4f(0.0);
    var o2 = vec4f(0.0);
    var o3 = vec4f(0.0);
    var o4 = vec4f(0.0);
    var o5 = vec4f(0.0);
    var o6 = vec4f(0.0);
    var o7 = vec4f(0.0);

    for (var p = page_from(0u, position); p <= position / PAGE; p = page_from(p + 1u, position)) {
        let page = page_table[at.z * heads.table_stride + p];
        let keys = (page * heads.num_kv_heads + kv_head) * octets * PAGE;
        var near = vec4f(0.0);  // score of token `lane`
        var far = vec4f(0.0);   // score of token `lane + 8`
        for (var slice = 0u; slice < slices; slice++) {
            if (slices > 1u) {
                queries = load_queries(row, slice);
            }
            for (var o = 0u; o < min(octets - slice * 8u, 8u); o++) {
                let v = heard_queries(queries, o);
                let key = keys + (slice * 8u + o) * PAGE + lane;
                near = score(near, v, load_keys(key));
                far = score(far, v, load_keys(key + 8u));
            }
        }
        let first = p * PAGE;
        near = select(vec4f(LEFT_OUT), near * heads.scale, reaches(first + lane, position));
        far = select(vec4f(LEFT_OUT), far * heads.scale, reaches(first + lane + 8u, position));

        let peak = max(highest, lane_max(max(near, far)));
        let shrink = exp(highest - peak);
        let weight_near = exp(near - peak);
        let weight_far = exp(far - peak);
        mass = fma(mass, shrink, lane_sum(weight_near + weight_far));
        highest = peak;
        o0 *= shrink;
        o1 *= shrink;
        o2 *= shrink;
        o3 *= shrink;
        o4 *= shrink;
        o5 *= shrink;
        o6 *= shrink;
        o7 *= shrink;

        tell_done();
        tell(8u, weight_near);
        tell(9u, weight_far);
        tell_done();
        // Tokens that the row does not reach are left out: their weight is zero, but their bytes may be anything.
        for (var t = 0u; t < min(position - first + 1u, PAGE); t++) {
            if (!counts(first + t, position)) {
                continue;
            }
            let w = heard(8u + t / 8u, t % 8u, select(weight_near, weight_far, t >= 8u));
            let value = load_values(((page * heads.num_kv_heads + kv_head) * PAGE + t) * octets + value_lane);
            o0 = fma(w, vec4f(value.low.x), o0);
            o1 = fma(w, vec4f(value.low.y), o1);
            o2 = fma(w, vec4f(value.low.z), o2);
            o3 = fma(w, vec4f(value.low.w), o3);
            o4 = fma(w, vec4f(value.high.x), o4);
            o5 = fma(w, vec4f(value.high.y), o5);
            o6 = fma(w, vec4f(value.high.z), o6);
            o7 = fma(w, vec4f(value.high.w), o7);
        }
    }

    if (value_octet < octets) {
        store(row, value_octet, mass, o0, o1, o2, o3, o4, o5, o6, o7);
    }
}

fn store(
    row: u32, octet: u32, mass: vec4f,
    o0: vec4f, o1: vec4f, o2: vec4f, o3: vec4f, o4: vec4f, o5: vec4f, o6: vec4f, o7: vec4f,
) {
    for (var h = 0u; h < head_count; h++) {
        let to = row * heads.q_stride + (first_head + h) * heads.head_dim + octet * 8u;
        y[to] = o0[h] / mass[h];
        y[to + 1u] = o1[h] / mass[h];
        y[to + 2u] = o2[h] / mass[h];
        y[to + 3u] = o3[h] / mass[h];
        y[to + 4u] = o4[h] / mass[h];
        y[to + 5u] = o5[h] / mass[h];
        y[to + 6u] = o6[h] / mass[h];
        y[to + 7u] = o7[h] / mass[h];
    }
}
