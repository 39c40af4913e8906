// Eight lanes that talk through workgroup memory: attention's half of the exchange, for devices without subgroups.
// Sums and maxima in lanes_subgroup's order. Every lane must reach every call.

var<workgroup> board: array<vec4f, 80>;  // 10 slots of 8 lanes: 8 for queries, 2 for probabilities
var<workgroup> fold_board: array<vec4f, 8>;

@compute @workgroup_size(8, 1, 1)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
    lane = local;
    attend(group);
}

fn gather(own: vec4f) {
    workgroupBarrier();
    fold_board[lane] = own;
    workgroupBarrier();
}

fn lane_max(own: vec4f) -> vec4f {
    gather(own);
    let low = max(max(fold_board[0], fold_board[1]), max(fold_board[2], fold_board[3]));
    return max(low, max(max(fold_board[4], fold_board[5]), max(fold_board[6], fold_board[7])));
}

fn lane_sum(own: vec4f) -> vec4f {
    gather(own);
    let low = (fold_board[0] + fold_board[1]) + (fold_board[2] + fold_board[3]);
    return low + ((fold_board[4] + fold_board[5]) + (fold_board[6] + fold_board[7]));
}

fn tell(slot: u32, own: vec4f) {
    board[slot * 8u + lane] = own;
}

fn tell_done() {
    workgroupBarrier();
}

fn heard(slot: u32, source: u32, own: vec4f) -> vec4f {
    return board[slot * 8u + source];
}
