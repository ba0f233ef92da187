// Message send and fiber switch for AArch64 (AAPCS64). Structs over 16 bytes travel by reference and results through x8,
// so one objc_msgSend serves all methods; the host is compiled with -D__arm64__, as on macOS.
        .text
        .globl objc_msgSend
        .type objc_msgSend, %function
objc_msgSend:
        cbz x0, 1f
        stp x29, x30, [sp, #-224]!
        mov x29, sp
        stp x0, x1, [sp, #16]
        stp x2, x3, [sp, #32]
        stp x4, x5, [sp, #48]
        stp x6, x7, [sp, #64]
        str x8, [sp, #80]
        stp q0, q1, [sp, #96]
        stp q2, q3, [sp, #128]
        stp q4, q5, [sp, #160]
        stp q6, q7, [sp, #192]
        bl sm_objc_lookup
        mov x16, x0
        ldp x0, x1, [sp, #16]
        ldp x2, x3, [sp, #32]
        ldp x4, x5, [sp, #48]
        ldp x6, x7, [sp, #64]
        ldr x8, [sp, #80]
        ldp q0, q1, [sp, #96]
        ldp q2, q3, [sp, #128]
        ldp q4, q5, [sp, #160]
        ldp q6, q7, [sp, #192]
        ldp x29, x30, [sp], #224
        br x16
1:      mov x1, xzr
        movi v0.2d, #0
        movi v1.2d, #0
        movi v2.2d, #0
        movi v3.2d, #0
        ret
        .size objc_msgSend, . - objc_msgSend

// void sm_switch(void** save, void* to)
        .globl sm_switch
        .hidden sm_switch
        .type sm_switch, %function
sm_switch:
        stp x29, x30, [sp, #-160]!
        stp x19, x20, [sp, #16]
        stp x21, x22, [sp, #32]
        stp x23, x24, [sp, #48]
        stp x25, x26, [sp, #64]
        stp x27, x28, [sp, #80]
        stp d8, d9, [sp, #96]
        stp d10, d11, [sp, #112]
        stp d12, d13, [sp, #128]
        stp d14, d15, [sp, #144]
        mov x9, sp
        str x9, [x0]
        mov sp, x1
        ldp x19, x20, [sp, #16]
        ldp x21, x22, [sp, #32]
        ldp x23, x24, [sp, #48]
        ldp x25, x26, [sp, #64]
        ldp x27, x28, [sp, #80]
        ldp d8, d9, [sp, #96]
        ldp d10, d11, [sp, #112]
        ldp d12, d13, [sp, #128]
        ldp d14, d15, [sp, #144]
        ldp x29, x30, [sp], #160
        ret

// void* sm_fiber(char* top, void (*main)()): a stack on which sm_switch enters main
        .globl sm_fiber
        .hidden sm_fiber
        .type sm_fiber, %function
sm_fiber:
        and x0, x0, #-16
        sub x0, x0, #160
        stp xzr, x1, [x0]
        mov x2, x0
        add x3, x0, #160
1:      add x2, x2, #16
        cmp x2, x3
        b.hs 2f
        stp xzr, xzr, [x2]
        b 1b
2:      ret
        .section .note.GNU-stack, "", %progbits
