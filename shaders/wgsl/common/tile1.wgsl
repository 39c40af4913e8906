// The mat-mul of one cluster for a tile of 1 token: 32 output rows in four vec4f lanes per token.
// The order of sums is the contract: tile8 adds in the same order, so a token's result does not depend on its company.

const TILE: u32 = 1u;

struct Sums {
    t0: vec4f,
}

fn accumulate(tile: u32, first: u32) -> Sums {
    var s = Sums(vec4f());
    let o0 = x_row(first) * shape.x_stride + lane;
    for (var b = k_first; b < shape.k_blocks; b += k_step) {
        let w0 = x[o0 + 8u * b];
        let l0 = bitcast<vec4f>(low_of(w0));
        let h0 = bitcast<vec4f>(high_of(w0));
        publish(0u, l0, h0);
        settle();
        let k = load_block(tile, b);
        let x0 = half_sums(0u, l0, h0);
        var p0 = vec4f();
        {
            let e = unpack(k, 0u);
            p0 = dot8(p0, e, take_low(0u, 0u, l0), take_high(0u, 0u, h0));
        }
        {
            let e = unpack(k, 1u);
            p0 = dot8(p0, e, take_low(0u, 1u, l0), take_high(0u, 1u, h0));
        }
        {
            let e = unpack(k, 2u);
            p0 = dot8(p0, e, take_low(0u, 2u, l0), take_high(0u, 2u, h0));
        }
        {
            let e = unpack(k, 3u);
            p0 = dot8(p0, e, take_low(0u, 3u, l0), take_high(0u, 3u, h0));
        }
        s.t0 = fold(s.t0, p0, k, 0u, x0.x);
        p0 = vec4f();
        {
            let e = unpack(k, 4u);
            p0 = dot8(p0, e, take_low(0u, 4u, l0), take_high(0u, 4u, h0));
        }
        {
            let e = unpack(k, 5u);
            p0 = dot8(p0, e, take_low(0u, 5u, l0), take_high(0u, 5u, h0));
        }
        {
            let e = unpack(k, 6u);
            p0 = dot8(p0, e, take_low(0u, 6u, l0), take_high(0u, 6u, h0));
        }
        {
            let e = unpack(k, 7u);
            p0 = dot8(p0, e, take_low(0u, 7u, l0), take_high(0u, 7u, h0));
        }
        s.t0 = fold(s.t0, p0, k, 1u, x0.y);
        settle();
    }
    return s;
}

// Calls the kernel's emit(token, rows) for each token of the tile that exists.
fn emit_all(s: Sums, tokens: u32) {
    emit(0u, s.t0);
}

// Adds up what the clusters of the workgroup have summed, in their order; all of them get the whole.
var<workgroup> cluster_sums: array<vec4f, 8u * CLUSTERS>;

fn merge_clusters(s: Sums) -> Sums {
    if (CLUSTERS == 1u) {
        return s;
    }
    let own = cluster * 8u + lane;
    cluster_sums[own] = s.t0;
    workgroupBarrier();
    var whole = Sums(cluster_sums[lane]);
    for (var c = 1u; c < CLUSTERS; c++) {
        let at = c * 8u + lane;
        whole.t0 += cluster_sums[at];
    }
    return whole;
}
